"""The text logs, and the environment variables that control them."""

from statement import Statement

PEER = "test_against_peer.py::"
ENVIRONMENT = PEER + "test_environment_variables_match_the_peer"

STATEMENTS = (
    Statement(
        "Statistics are in "
        "`<log_dir>/nvdlfw_inspect_statistics_logs/nvdlfw_inspect_globalrank-<rank>.log`.",
        ENVIRONMENT,
    ),
    Statement(
        "Each value is one line: `<date time,ms> - INFO - <layer>_<tensor>_<stat> \\t\\t\\t\\t "
        "iteration=%06d \\t\\t\\t\\t value=%.4f`, with a space, four tabs and a space between the "
        "parts.",
        "SessionTest.lines_of_the_statistics_log_have_the_peers_form",
    ),
    Statement(
        "The lines equal the peer's, except for the last digits.",
        PEER + "test_script_tensor_statistics_match_the_peer",
    ),
    Statement(
        "The iteration is the one that was seen, not the one after `step()`.",
        "SessionTest.loggers_get_rows_in_step_with_the_iteration_they_belong_to",
    ),
    Statement(
        "Full precision is in the run file *(ours)*.",
        "test_debug_session.py::test_the_run_is_read_back_as_tables",
    ),
    Statement(
        "A `statistics_logger` gets `log_scalar(name, value, iteration)`.",
        "test_debug_session.py::test_logger_receives_statistics_with_iteration",
    ),
    Statement(
        "A `tb_writer` gets `add_scalar(name, value, iteration)`.",
        "test_debug_session.py::test_a_tensorboard_writer_gets_add_scalar",
    ),
    Statement(
        "Messages are in the file of the same name under `nvdlfw_inspect_logs/`.",
        ENVIRONMENT,
    ),
    Statement(
        "A layer's plan is a message per input and GEMM: `LAYER=<layer>: Tensor: activation, "
        "gemm fprop - Quantize`, `High Precision` or `modify_tensor()`.",
        "SessionTest.plans_are_logged_once_per_operand_and_gemm",
    ),
    Statement(
        "A message of a layer begins with `LAYER=<layer>: `.",
        PEER + "test_messages_of_a_calling_line_are_all_written",
    ),
    Statement(
        "WARNING and above are also on stderr, after `telens: `, or `NVDLFW INSPECT - ` if the "
        "script has imported nvdlfw_inspect.",
        "test_contract_logs.py::test_warnings_are_on_stderr_after_a_prefix",
    ),
    Statement(
        "A message `Assigned layer name: <name>` has each module that "
        "`infer_and_assign_layer_names` names in a session.",
        "test_peer_names.py::test_every_named_layer_has_a_line_in_the_message_log",
    ),
    Statement(
        "A session in which no layer of TELens ran ends with a WARNING that names the modules "
        "that ran instead *(ours)*.",
        "test_run_as_te.py::test_a_session_without_any_telens_layer_says_so_at_its_end",
    ),
    Statement(
        "`NVDLFW_INSPECT_LOG_LEVEL` (INFO) is the lowest level of messages, in upper or lower "
        "case; statistics are always written.",
        ENVIRONMENT,
    ),
    Statement(
        "`NVDLFW_INSPECT_ENABLE_LOG_OVERWRITE`: 1 (the default) truncates, 0 appends.",
        ENVIRONMENT,
    ),
    Statement(
        "`NVDLFW_INSPECT_ENABLE_LOG_TIMESTAMP`: 1 puts a stamp into the names, which is taken "
        "from `NVDLFW_INSPECT_LOG_TIMESTAMP`.",
        ENVIRONMENT,
    ),
    Statement(
        "The stamp `<YYYYmmdd_HHMMSS>` is put into that variable if it is not set.",
        PEER + "test_the_time_stamp_is_put_into_the_environment_for_others",
    ),
    Statement(
        "A folder that cannot be written stops the logs with one line, and not the training "
        "*(ours)*.",
        "SessionTest.unwritable_folder_stops_recording_but_not_training",
    ),
)
