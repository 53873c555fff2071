import logging
import subprocess
import sys

import pytest

from cudnn import _experimental_warnings, api_base
from cudnn.logs import LOG_VARIABLE, get_logger


def test_without_the_variable_records_go_where_the_program_sends_them(monkeypatch, caplog):
    monkeypatch.delenv(LOG_VARIABLE, raising=False)
    logger = get_logger("cudnn.something")
    assert logger is logging.getLogger("cudnn.something") and logger.propagate and not logger.handlers
    with caplog.at_level("INFO", logger="cudnn"):
        logger.info("told")
    assert [record.getMessage() for record in caplog.records] == ["told"]


def test_wrong_value(monkeypatch):
    monkeypatch.setenv(LOG_VARIABLE, "loud")
    with pytest.raises(ValueError, match="CUDNN_KERNELS_LOG: found 'loud', needs one of debug, info, warning, or unset it"):
        get_logger()


SCRIPT = """
import logging
from cudnn.logs import get_logger
logging.basicConfig(level="DEBUG")
for _ in range(2):
    loggers = [get_logger(), get_logger("cudnn.cache"), get_logger("GemmSwiglu")]
for logger in loggers:
    logger.debug("quiet")
    logger.info("told")
"""


def test_with_the_variable_each_record_is_printed_once(monkeypatch):
    monkeypatch.setenv(LOG_VARIABLE, "Info")
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines() == ["[cudnn] INFO told", "[cudnn.cache] INFO told", "[GemmSwiglu] INFO told"]


def test_experimental_warning_once_per_name_and_registry(caplog):
    pairs = (api_base, _experimental_warnings)
    for module in pairs:
        module._reset_experimental_api_warning_registry()
    logger = logging.getLogger("experimental-test")
    for module in pairs:
        caplog.clear()
        for name in ("A", "A", "B"):
            module.warn_experimental_api_once(logger, name)
        assert [(record.levelname, record.getMessage()) for record in caplog.records] == [("WARNING", f"{name} is an experimental API") for name in "AB"]
    caplog.clear()
    _experimental_warnings._reset_experimental_api_warning_registry()  # leaves the other registry
    api_base.warn_experimental_api_once(logger, "A")
    assert not caplog.records
    _experimental_warnings.warn_experimental_api_once(logger, "A")
    assert len(caplog.records) == 1
