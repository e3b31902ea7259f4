import pytest
from support.head_rig import Rig


@pytest.fixture
def rig():
    """Makes drafters with heads, and closes what they have loaded."""
    made = []

    def make(*args, **options):
        made.append(Rig(*args, **options))
        return made[-1]

    yield make
    for each in made:
        each.loader.close()
