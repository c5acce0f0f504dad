"""Damaged files, disks that fail, and runs that meet: each row undoes a mend."""

from mutant import Mutant

MENDED_FILES = (
    # ---- damage is noticed, and costs no more than itself
    Mutant(
        promise="damage: rows of plain tables are compared with their checksums",
        file="features/record/segment_reader.cpp",
        before="      if (checksums && sum != checksum(begin + i, row.data(), row.size())) {",
        after="      if (checksums && sum == 1) {",
        program="damage_test",
        tests="*DamagedFile.no_changed_byte*",
    ),
    Mutant(
        promise="damage: packed rows are compared with their checksums",
        file="features/record/packed_rows.h",
        before="    if (sum != checksum(chunk, compressed.data(), compressed.size())) return "
        "damaged(chunk);",
        after="    if (sum == 1) return damaged(chunk);",
        program="damage_test",
        tests="*ClosedRun.a_chunk_in_the_place_of_another*",
    ),
    Mutant(
        promise="repair: the file is there until its repaired copy takes its place",
        file="features/record/repair.cpp",
        before="    copy_all(original, file, result.lost);",
        after="    ::unlink(path.c_str());\n    copy_all(original, file, result.lost);",
        program="record_crash_test",
        tests="InterruptedRepair.*",
    ),
    Mutant(
        promise="repair: a new file is on the disk before it takes the other's place",
        file="features/record/repair.cpp",
        before="    const bool synced = file >= 0 && ::fsync(file) == 0;",
        after="    const bool synced = file >= 0;",
        program="record_crash_test",
        tests="InterruptedRepair.a_copy_that_does_not_reach*",
    ),
    Mutant(
        promise="a write that fails once costs no row: recording goes on in a new file",
        file="features/record/segment_series.cpp",
        before="    go_on_after_failure(batch, before, failure.what());\n  }\n}",
        after='    raise<RecordError>("{}", failure.what());\n  }\n}',
        program="record_crash_test",
        tests="FailedWrite.that_stays_the_only_one*",
    ),
    Mutant(
        promise="a log_dir that is removed while it is written is told",
        file="features/record/segment_series.cpp",
        before="  if (!current_->is_in_place()) go_on_after_removal();\n  if (!thins())",
        after="  if (!thins())",
        program="record_crash_test",
        tests="RemovedFolder.*",
    ),
    Mutant(
        promise="rows that a slow disk costs are told while it happens",
        file="features/record/run_writer_impl.cpp",
        before="  if (counters_.dropped == 0) drops_to_tell_ = true;\n",
        after="",
        program="run_writer_test",
        tests="*a_full_queue_drops*",
    ),
    # ---- whose run it is, and names
    Mutant(
        promise="two live processes of one run and rank do not hide each other's rows",
        file="features/record/rank_claim.cpp",
        before="    if (::fcntl(descriptor, F_SETLK, &lock) == 0) {",
        after="    if (::fcntl(descriptor, F_SETLK, &lock) == 0 || errno != 0) {",
        program="rank_claim_test",
        tests="RankClaim.*",
    ),
    Mutant(
        promise="a run's name does not leave log_dir",
        file="features/record/run_id.cpp",
        before="  return is_letter(c) || is_digit(c) ||",
        after="  return c == '/' || is_letter(c) || is_digit(c) ||",
        program="rank_claim_test",
        tests="RunId.*",
    ),
    Mutant(
        promise="a lock file follows no symbolic link",
        file="features/record/rank_claim.cpp",
        before="O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK",
        after="O_RDWR | O_CREAT | O_NONBLOCK",
        program="rank_claim_test",
        tests="RankClaim.follows_no_symbolic_link",
    ),
    Mutant(
        promise="what killed processes leave goes when their rank is written again",
        file="features/record/run_writer_impl.cpp",
        before="    if (options_.claim->is_exclusive()) remove_leftovers(folder, options_.rank);\n",
        after="",
        program="rank_claim_test",
        tests="Leftovers.*",
    ),
    Mutant(
        promise="names that begin alike stay different names",
        file="features/record/text_cell.cpp",
        before='fmt::format("{}{:016x}", kCut, fnv1a(name))',
        after='fmt::format("{}{:016x}", kCut, name.size())',
        program="run_writer_test",
        tests="RunWriter.names_that_begin_alike*",
    ),
)
