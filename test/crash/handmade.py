"""Judges histories made by hand: a good one passes, and each bad one is flagged by the rules that it breaks, and by no
other rule.
"""


def flagged(h, rules):
    return {rule.__name__ for rule in rules if list(rule(h))}


def judged(what, good, bad, rules, own=None):
    """(what, is it right, rules that flag it).

    good makes a history.  bad: name -> the rules that it breaks, and what makes a good history bad.  own: the rules each
    of which needs a bad history, if they are not all.
    """
    found = flagged(good(), rules)
    yield f"a good history of {what} passes", not found, found
    for name, (wanted, change) in bad.items():
        h = good()
        change(h)
        found = flagged(h, rules)
        yield f"{what}: {name}", found == wanted, found
    caught = set().union(*(wanted for wanted, _ in bad.values()))
    yield f"each rule of {what} has a history against it", caught >= {r.__name__ for r in own or rules}, caught
