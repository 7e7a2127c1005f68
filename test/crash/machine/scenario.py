"""The list of scenarios: name -> function(lab, random), in the order of the sources."""
SCENARIOS = {}


def scenario(name):
    """Register a scenario.  The function returns a line with what it counted, or raises."""
    def note(function):
        SCENARIOS[name] = function
        return function
    return note
