"""Groups for a corpus that has none: by the values of a field, by files, or by clusters of what documents say.

files → corpus.py: documents, a bounded sample → space.py: vectors → clusters.py: k groups → shards.py: files by group
                                               ↘ describe.py: telling words, how far groups are apart, warnings
"""

from aioli.groups.proposal import Group, Proposal, propose

__all__ = ["Group", "Proposal", "propose"]
