"""What all tests share: machines are, too, so an example may take as long as it takes."""

from hypothesis import settings

settings.register_profile("shared", deadline=None)
settings.load_profile("shared")
