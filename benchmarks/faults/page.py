"""x"""


def page(found, load):
    return ""
