"""The list of scenarios: name -> function(lab, random), in the order they were written."""
SCENARIOS = {}


def scenario(name):
    """The function returns one line that says what it counted, or raises."""
    def note(function):
        SCENARIOS[name] = function
        return function
    return note
