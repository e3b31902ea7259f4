"""What only a GPU can tell: see `__main__`."""

import site
from pathlib import Path

site.addsitedir(str(Path(__file__).parents[2] / ".gpu/site"))  # numba-cuda takes the place of numba's own by a .pth file there
