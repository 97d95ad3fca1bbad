"""x"""


def damage(bench):
    return []
