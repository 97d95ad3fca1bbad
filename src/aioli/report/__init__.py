"""What people look at: journals as traces, charts as SVG, pages that need nothing but a browser."""
