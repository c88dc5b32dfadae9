"""What newcomers and hostile users once ran into, and the test that keeps each from coming back."""

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

MONEY = {
    "another size, channels or limit, one record fewer": "cli/test_money.py::test_views_of_one_source_share_its_limit",
    "synthesize in Python": "cli/test_money.py::test_python_charges_the_account_of_the_command_line",
    "resume with nothing to resume": "cli/test_money.py::test_resuming_nothing_is_refused_and_free",
    "resume with other data": "cli/test_money.py::test_resuming_with_other_data_of_the_same_shape_publishes_nothing",
    "groups without unit group": "cli/test_money.py::test_groups_that_are_named_are_the_unit",
    "blank patients in a pack": "cli/test_money.py::test_blank_patients_are_refused",
    "group and record runs on one account": "privacy/test_account.py::"
    "test_records_and_groups_need_a_bound_to_be_added_up",
    "a place that cannot be written": "cli/test_money.py::test_a_place_that_cannot_be_written_to_costs_nothing",
    "disk full at the first result": "cli/test_money.py::test_a_failure_after_the_charge_says_so_and_how_to_go_on",
    "too many samples": "cli/test_money.py::test_samples_that_no_memory_holds_cost_nothing",
    "one public image": "cli/test_money.py::test_one_public_image_costs_nothing",
    "few groups, told before paying": "cli/test_money.py::test_few_units_are_said_before_the_charge",
    "one record": "cli/test_money.py::test_one_record_is_refused",
    "epsilon 1e-9": "cli/test_money.py::test_a_tiny_epsilon_has_digits_and_a_tiny_delta_is_refused",
    "verify of a forged release": "cli/test_commands.py::test_the_first_line_of_verify_is_the_verdict",
    "verify with a key names the signer": "cli/test_commands.py::test_the_whole_story",
    "verify without a guarantee": "cli/test_commands.py::test_a_release_without_a_guarantee_can_be_refused_by_a_script",
    "files that others may not read": "cli/test_money.py::test_files_of_a_release_can_be_read_by_others",
    "a permission is no forgery": "release/test_hostile.py::test_an_unreadable_file_is_no_forgery",
    "any SQLite file as an account": "cli/test_money.py::test_any_other_database_as_an_account_is_refused",
    "a read-only account": "privacy/test_account.py::test_a_read_only_account_can_be_shown",
    "a locked account": "privacy/test_account.py::test_a_busy_account_is_named_in_one_line",
    "a second run into the same place": "cli/test_money.py::test_a_run_that_is_alive_is_said_to_be",
    "classes in another order": "data/test_matching.py::test_another_order_gets_the_wanted_numbers",
    "classes without released images": "cli/test_money.py::test_classes_without_images_are_named",
}
NEWCOMERS = {
    "the README's command on a folder": "cli/test_newcomer.py::test_a_folder_with_its_patients_and_flat_public_images",
    "patients in a table": "data/test_owners.py::test_a_table_beside_the_folder_says_who_owns_what",
    "a flat folder of public images": "data/test_owners.py::test_public_images_need_no_classes",
    "how long, how much memory": "cli/test_newcomer.py::test_a_plan_says_how_long_and_recommends_what_is_not_named",
    "which method, which epsilon": "cli/test_newcomer.py::test_choose_answers_scripts_and_people",
    "silence on a terminal": "cli/test_newcomer.py::test_something_moves_on_a_terminal",
    "silence elsewhere": "cli/test_newcomer.py::test_long_silence_is_broken_without_a_terminal",
    "where is my account": "cli/test_money.py::test_accounts_are_listed_and_found_by_their_data",
    "load_dataset of a release": "release/test_other_readers.py::test_hugging_face_loads_a_release_as_it_is",
    "load_dataset of a release in shards": "release/test_other_readers.py::"
    "test_hugging_face_loads_shards_of_tables_as_they_are",
    "load_dataset of an export": "release/test_other_readers.py::test_hugging_face_loads_the_folder_as_it_is",
    "load_dataset of shards": "release/test_other_readers.py::"
    "test_hugging_face_loads_webdataset_shards_and_not_the_certificate",
    "a release as a dataset in Python": "pipeline/test_estimator.py::"
    "test_a_release_is_a_hugging_face_dataset_and_comes_back",
    "files beside a release's own": "release/test_hostile.py::"
    "test_what_file_managers_and_git_leave_behind_is_noted_and_not_fatal",
    "the card of an export": "release/test_release_export.py::"
    "test_every_export_carries_certificate_and_card_and_is_deterministic",
    "arrays in Python": "pipeline/test_estimator.py::test_arrays_to_a_release_on_the_same_account",
    "datasets in Python": "data/test_datasets.py::test_a_hugging_face_dataset_is_read_with_its_class_names",
    "torch datasets in Python": "data/test_datasets.py::test_a_torch_dataset_is_read_with_its_channels_last",
    "a budget without a delta in Python": "pipeline/test_estimator.py::test_arrays_to_a_release_on_the_same_account",
    "errors in terms of Python": "core/test_errors.py::test_a_real_call_speaks_python",
    "names in Python": "test_layers.py::test_the_public_surface",
    "names in Python, with examples": "test_doctests.py::test_examples_run",
    "a student of one's own": "cli/test_newcomer.py::test_a_student_of_ones_own_is_tried_before_it_is_trained",
    "evaluate and attack know the size": "cli/test_newcomer.py::test_real_images_are_read_as_the_release_has_them",
    "npz is one file": "cli/test_newcomer.py::test_one_file_is_exported_as_a_file",
    "usage errors as JSON": "cli/test_newcomer.py::test_usage_errors_are_json_where_json_was_asked_for",
    "a teacher that is not there": "cli/test_convert.py::test_what_is_missing",
    "a pack without splits": "data/test_owners.py::test_a_pack_without_splits_says_so",
    "a federation whose keys are missing": "cli/test_newcomer.py::test_a_federation_names_the_file_that_is_missing",
    "a flat folder of public images, in a federation": "cli/test_newcomer.py::"
    "test_public_images_of_a_federation_need_no_classes_either",
    "resume with other options": "cli/test_money.py::test_resuming_with_other_options_names_them",
    "a suite with mistakes": "cli/test_newcomer.py::test_a_suite_is_checked_before_its_first_cell",
    "keygen on a full disk": "cli/test_newcomer.py::test_no_part_of_a_key_stays_on_a_full_disk",
    "weights on a full disk": "cli/test_newcomer.py::test_a_full_disk_under_the_weights_is_one_line",
    "a damaged paid result": "privacy/test_opening.py::test_a_paid_result_that_is_not_its_own_is_refused",
    "a federation without Flower": "cli/test_newcomer.py::test_a_federation_without_flower_says_what_to_install",
    "Ctrl-C at the start": "cli/test_newcomer.py::test_an_interruption_while_the_command_is_loaded_is_one_line",
}


@cache
def functions_of(file: str) -> frozenset[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("case", [*MONEY, *NEWCOMERS])
def test_each_case_has_its_test(case: str) -> None:
    file, _, name = (MONEY | NEWCOMERS)[case].partition("::")
    assert name in functions_of(file)
