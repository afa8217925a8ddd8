//! `--memdbg`: who holds memory, in words.

use crate::{Folder, finish, golden, plimsoll, run_ids};

/// Standard error of a run over a prompt of three chunks.
fn told(more: &[&str]) -> Option<Vec<String>> {
    let golden = golden("tiny-gqa-6x2")?;
    let folder = Folder::new();
    let ids: Vec<u32> = golden.ids.iter().copied().cycle().take(1_200).collect();
    let more = [&["-n", "2", "--json"][..], more].concat();
    let ran = run_ids(&folder, &golden.model, &ids, &more);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    Some(ran.stderr.lines().map(str::to_owned).collect())
}

#[test]
fn every_chunk_and_the_end_tell_who_holds_what() {
    let Some(lines) = told(&["--memdbg", "1"]) else { return };
    assert!(lines.iter().all(|line| line.starts_with("memdbg: ")), "{lines:#?}");
    let with = |part: &str| lines.iter().filter(|line| line.contains(part)).count();
    for part in ["chunk 1, 512 rows at 0: planned ", "chunk 2, 512 rows at 512: ", "chunk 3, 176 rows at 1024: "] {
        assert_eq!(with(part), 1, "{part}: {lines:#?}");
    }
    assert_eq!(with("pressure nominal"), 3, "{lines:#?}");
    // After each chunk, and at the end.
    for part in ["held: weights ", "device counter: none, this is the CPU", "allocator retention "] {
        assert!(with(part) >= 4, "{part}: {lines:#?}");
    }
    assert!(!cfg!(target_os = "linux") || with("regions: heap ") == 4, "{lines:#?}");
    assert_eq!(with("since the chunk before: "), 3, "{lines:#?}");
    assert!(with("keys and values grew by ") >= 2 && with("(planned for every token)") >= 2, "{lines:#?}");
    assert!(with("arena grew by ") >= 1, "{lines:#?}");
    assert_eq!((with("end of the run"), with("per prompt token, over the last 688: ")), (1, 1), "{lines:#?}");
    assert_eq!(with("mode 2"), 0, "looking changes nothing");
}

#[test]
fn mode_2_says_on_every_line_that_it_changed_what_it_sees() {
    let Some(lines) = told(&["--memdbg", "2"]) else { return };
    let end = " (changed by looking)";
    assert_eq!(
        lines.iter().filter(|line| line.contains("mode 2: after each chunk, what can be given back is")).count(),
        1
    );
    assert!(lines.iter().all(|line| line.starts_with("memdbg: ") && line.ends_with(end)), "{lines:#?}");
    assert_eq!(lines.iter().filter(|line| line.contains("given back and read again: footprint ")).count(), 3);
}

#[test]
fn the_environment_turns_it_on_and_nothing_is_told_without() {
    let Some(golden) = golden("tiny-one-row") else { return };
    let folder = Folder::new();
    let ids = folder.ids(&golden.ids);
    let told = |mode: Option<&str>| {
        let mut command = plimsoll(["run", "-m", golden.model.to_str().unwrap(), "--token-ids", &ids, "-n", "1"]);
        if let Some(mode) = mode {
            command.env("PLIMSOLL_MEMDBG", mode);
        }
        finish(command)
    };
    assert!(told(Some("1")).stderr.starts_with("memdbg: chunk 1"));
    assert_eq!(told(Some("0")).stderr, "");
    assert_eq!(told(None).stderr, "");
    let error = told(Some("3")).fails(2);
    assert!(error.contains("memdbg"), "{error}");
}

#[test]
fn without_drains_nothing_is_told_of_them() {
    let Some(lines) = told(&["--memdbg", "1", "--drain", "off"]) else { return };
    assert!(lines.iter().all(|line| !line.contains("by the drain")), "{lines:#?}");
}
