"""The application for ``INSTALLED_APPS``: ``aiolock.integrations.django``."""

from django.apps import AppConfig
from django.core import checks

from aiolock.integrations.django._checks import check_deployment, check_settings


class AiolockConfig(AppConfig):
    """``manage.py aiolock``, and the checks of the settings; it has no models."""

    name = "aiolock.integrations.django"
    label = "aiolock"
    verbose_name = "aiolock"

    def ready(self) -> None:
        """Register the checks."""
        checks.register(check_settings, "aiolock")
        checks.register(check_deployment, "aiolock", deploy=True)
