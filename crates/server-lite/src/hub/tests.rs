use super::{name::HubName, *};
use server::{COMMIT, Hub, REPO, sha256};
use std::{sync::Barrier, thread, time::Instant};
use tempfile::TempDir;

pub(crate) mod server;

/// 200,003 bytes that are never the same twice.
fn weights(seed: u32) -> Vec<u8> {
    let mut x = seed | 1;
    let next = |_| {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x.to_le_bytes()[1]
    };
    (0..200_003).map(next).collect()
}

/// A hub, and a cache of one's own.
struct World {
    hub: Hub,
    folder: TempDir,
    settings: HubSettings,
}

impl World {
    fn new() -> Self {
        let hub = Hub::new([
            ("README.md", b"words".to_vec()),
            ("config.json", b"{}".to_vec()),
            ("tokenizer.json", b"{ }".to_vec()),
            ("m-Q4_0.gguf", weights(1)),
            ("m-Q8_0.gguf", weights(2)),
            ("parts/m-F16-00001-of-00002.gguf", weights(3)),
            ("parts/m-F16-00002-of-00002.gguf", weights(4)),
        ]);
        let folder = tempfile::tempdir().unwrap();
        let patience = Patience {
            connect: Duration::from_secs(10),
            silence: Duration::from_secs(10),
            attempts: 3,
            pause: Duration::from_millis(1),
        };
        let settings = HubSettings {
            endpoint: Some(hub.endpoint()),
            token: None,
            cache: folder.path().join("hub"),
            offline: false,
            patience,
        };
        Self { hub, folder, settings }
    }

    fn fetch(&self, name: &str) -> Result<PathBuf, HubFault> {
        fetch(&HubName::parse(name).unwrap(), &self.settings, true)
    }

    /// The outcome with only the cache to ask.
    fn offline(&self, name: &str) -> Result<PathBuf, HubFault> {
        let settings = HubSettings { offline: true, ..self.settings.clone() };
        fetch(&HubName::parse(name).unwrap(), &settings, true)
    }

    fn repo(&self, path: &str) -> PathBuf {
        self.folder.path().join("hub/models--org--tiny").join(path)
    }

    /// Names of the blobs, locks left out.
    fn blobs(&self) -> Vec<String> {
        let entries = fs::read_dir(self.repo("blobs")).into_iter().flatten();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| !name.ends_with("-lock")).collect()
    }

    /// Ranges that the host for large files was asked for since the last call; an empty one is the whole file.
    fn ranges(&self) -> Vec<String> {
        let requests = self.hub.take_requests();
        let large = requests.iter().filter(|request| request.starts_with("GET /cdn/"));
        large.map(|request| request.split(' ').nth(2).unwrap_or_default().to_owned()).collect()
    }
}

#[test]
fn a_file_is_fetched_once_into_the_layout_that_other_programs_know() {
    let world = World::new();
    let path = world.fetch("org/tiny:q8_0").unwrap();
    assert_eq!(path, world.repo(&format!("snapshots/{COMMIT}/m-Q8_0.gguf")));
    assert_eq!(fs::read(&path).unwrap(), weights(2));
    let target = fs::read_link(&path).unwrap();
    assert_eq!(target, Path::new("../../blobs").join(sha256(&weights(2))));
    assert_eq!(fs::read_to_string(world.repo("refs/main")).unwrap(), COMMIT);
    assert_eq!(world.blobs(), [sha256(&weights(2))]);
    world.hub.take_requests();

    assert_eq!(world.fetch("org/tiny:m-Q8_0.gguf").unwrap(), path);
    assert_eq!(world.hub.take_requests().len(), 1, "the list alone is asked for again");
    for name in ["org/tiny:Q8_0", "org/tiny", &format!("org/tiny@{COMMIT}:Q8_0")] {
        assert_eq!(world.offline(name).unwrap(), path, "{name}");
    }
    assert_eq!(world.hub.take_requests(), [""; 0]);
}

#[test]
fn a_set_of_parts_and_a_folder_are_fetched_whole() {
    let world = World::new();
    let first = world.fetch("org/tiny:f16").unwrap();
    assert_eq!(first, world.repo(&format!("snapshots/{COMMIT}/parts/m-F16-00001-of-00002.gguf")));
    assert_eq!(fs::read(first.with_file_name("m-F16-00002-of-00002.gguf")).unwrap(), weights(4));

    let error = world.fetch("org/tiny").unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("m-Q4_0.gguf, m-Q8_0.gguf, parts/"), "{error}");
    world.hub.state().files.insert("model.safetensors".to_owned(), weights(5));
    let folder = world.fetch("org/tiny").unwrap();
    assert_eq!(folder, world.repo(&format!("snapshots/{COMMIT}")));
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), weights(5));
    assert_eq!(fs::read(folder.join("tokenizer.json")).unwrap(), b"{ }");
    assert!(!folder.join("README.md").exists() && !folder.join("m-Q4_0.gguf").exists());
    assert_eq!(world.offline("org/tiny").unwrap(), folder);
}

#[test]
fn weights_in_several_files_are_those_that_the_index_names() {
    let world = World::new();
    let index = |names: [&str; 2]| serde_json::json!({ "weight_map": { "x": names[0], "y": names[1] } }).to_string();
    let parts = ["model.safetensors-00001-of-00002.safetensors", "model.safetensors-00002-of-00002.safetensors"];
    let put = |name: &str, content: &[u8]| world.hub.state().files.insert(name.to_owned(), content.to_vec());
    put(INDEX, index(parts).as_bytes());
    put(parts[0], &weights(5));
    put("consolidated.safetensors", &weights(6));
    put("sub/model.safetensors", &weights(7));
    let error = world.fetch("org/tiny").unwrap_err();
    assert!(
        error.is_usage() && error.to_string().contains(&format!("names {}, which is missing", parts[1])),
        "{error}"
    );
    assert_eq!(world.ranges(), [""; 0], "no weights before all names are known to be good");

    // Another commit has the same name here: the index that was kept goes.
    let renew = |content: &str| {
        fs::remove_dir_all(world.repo("snapshots")).unwrap();
        put(INDEX, content.as_bytes());
    };
    put(parts[1], &weights(8));
    for name in ["../../evil.safetensors", "sub/model.safetensors", "/etc/evil.safetensors", "m-Q4_0.gguf"] {
        renew(&index([parts[0], name]));
        let error = world.fetch("org/tiny").unwrap_err();
        assert!(error.is_usage() && error.to_string().contains("no .safetensors file beside it"), "{name}: {error}");
        assert_eq!(world.ranges(), [""; 0], "{name}");
    }
    renew("{");
    assert!(world.fetch("org/tiny").unwrap_err().to_string().contains(INDEX));

    renew(&index(parts));
    let folder = world.fetch("org/tiny").unwrap();
    assert_eq!(world.ranges().len(), 2, "what the index does not name is not fetched");
    for (part, seed) in [(parts[0], 5), (parts[1], 8)] {
        assert_eq!(fs::read(folder.join(part)).unwrap(), weights(seed));
    }
    assert!(!folder.join("consolidated.safetensors").exists());
    assert_eq!(world.offline("org/tiny").unwrap(), folder);
    fs::remove_file(folder.join(parts[1])).unwrap();
    assert!(matches!(world.offline("org/tiny"), Err(HubFault::Offline { .. })), "a part is gone");
}

#[test]
fn weights_that_could_not_be_opened_are_not_fetched() {
    let world = World::new();
    {
        let mut state = world.hub.state();
        state.files.retain(|name, _| !name.ends_with(".gguf"));
        state.files.insert("consolidated.safetensors".to_owned(), weights(5));
    }
    let error = world.fetch("org/tiny").unwrap_err();
    assert!(matches!(error, HubFault::Choice(ChooseFault::NoModel)), "{error}");
    assert_eq!(world.hub.take_requests().len(), 1, "the list alone is asked for");
}

#[test]
fn a_connection_that_breaks_is_taken_up_where_it_broke() {
    let world = World::new();
    world.hub.state().cuts = [70_000, 0, 30_001].into();
    let path = world.fetch("org/tiny:Q4_0").unwrap();
    assert_eq!(fs::read(path).unwrap(), weights(1));
    assert_eq!(world.ranges(), ["bytes=0-", "bytes=70000-", "bytes=70000-", "bytes=100001-"]);
}

#[test]
fn a_call_that_gave_up_is_taken_up_by_the_next() {
    let world = World::new();
    world.hub.state().cuts = [70_000, 0, 0, 0].into();
    let error = world.fetch("org/tiny:Q4_0").unwrap_err();
    assert!(matches!(error, HubFault::Cut { done_bytes: 70_000, total_bytes: 200_003, .. }), "{error}");
    assert!(error.to_string().contains("m-Q4_0.gguf broke off after 70000 of 200003 bytes"), "{error}");
    assert!(world.offline("org/tiny:Q4_0").is_err(), "half a file is no file");
    world.ranges();
    let path = world.fetch("org/tiny:Q4_0").unwrap();
    assert_eq!(fs::read(path).unwrap(), weights(1));
    assert_eq!(world.ranges(), ["bytes=70000-"]);
}

#[test]
fn a_host_that_knows_no_ranges_is_asked_for_the_whole_file_again() {
    let world = World::new();
    {
        let mut state = world.hub.state();
        (state.ignores_ranges, state.cuts) = (true, [70_000, 80_000].into());
    }
    let path = world.fetch("org/tiny:Q4_0").unwrap();
    assert_eq!(fs::read(path).unwrap(), weights(1), "what came twice must not be kept twice");
}

#[test]
fn what_is_left_of_another_file_does_no_harm() {
    let world = World::new();
    fs::create_dir_all(world.repo("blobs")).unwrap();
    let part = world.repo(&format!("blobs/{}.plimsoll-part", sha256(&weights(1))));
    for left in [&weights(9)[..], &[weights(1), weights(1)].concat()] {
        fs::write(&part, left).unwrap();
        match world.fetch("org/tiny:Q4_0") {
            // As long as the file, and another: only the sum tells, and the next call begins anew.
            Err(HubFault::WrongSum { .. }) => {
                assert_eq!(fs::read(world.fetch("org/tiny:Q4_0").unwrap()).unwrap(), weights(1))
            }
            other => assert_eq!(fs::read(other.unwrap()).unwrap(), weights(1)),
        }
        fs::remove_dir_all(world.repo("snapshots")).unwrap();
        fs::remove_file(world.repo(&format!("blobs/{}", sha256(&weights(1))))).unwrap();
    }
}

#[test]
fn a_file_with_another_sum_is_not_kept() {
    let world = World::new();
    world.hub.state().corrupts = true;
    let error = world.fetch("org/tiny:Q4_0").unwrap_err();
    assert!(matches!(error, HubFault::WrongSum { .. }), "{error}");
    assert!(error.to_string().contains(&sha256(&weights(1))), "{error}");
    assert!(!world.repo(&format!("snapshots/{COMMIT}/m-Q4_0.gguf")).exists());
    world.hub.state().corrupts = false;
    assert_eq!(fs::read(world.fetch("org/tiny:Q4_0").unwrap()).unwrap(), weights(1));
}

#[test]
fn a_token_is_shown_to_the_hub_and_to_nobody_else() {
    let mut world = World::new();
    world.hub.state().token = Some("secret".to_owned());
    let error = world.fetch("org/tiny:Q4_0").unwrap_err();
    assert!(matches!(error, HubFault::Refused { status: 401, with_token: false }), "{error}");
    assert!(error.hints()[0].contains("HF_TOKEN"), "{:?}", error.hints());
    world.settings.token = Some("wrong".to_owned());
    assert!(matches!(world.fetch("org/tiny:Q4_0"), Err(HubFault::Refused { status: 401, with_token: true })));
    world.settings.token = Some("secret".to_owned());
    world.hub.take_requests();
    world.fetch("org/tiny:Q4_0").unwrap();
    for request in world.hub.take_requests() {
        assert_eq!(request.ends_with(" secret"), !request.contains("/cdn/"), "{request}");
    }
    world.hub.state().status_for_all = Some(403);
    let error = world.fetch("org/tiny:Q8_0").unwrap_err();
    assert!(matches!(error, HubFault::Refused { status: 403, with_token: true }), "{error}");
    assert!(error.hints()[0].contains("ask for access"), "{:?}", error.hints());
}

#[test]
fn what_the_hub_does_not_have_is_told() {
    let world = World::new();
    for name in ["org/other", "org/tiny@v2", "nobody/tiny:Q4_0"] {
        let error = world.fetch(name).unwrap_err();
        assert!(matches!(error, HubFault::NotFound { status: 404 }) && error.is_usage(), "{name}: {error}");
    }
    let error = world.fetch("org/tiny:Q2_K").unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("named after Q2_K; GGUF files: m-Q4_0.gguf"), "{error}");
    // In the listing, and gone when it is asked for.
    world.hub.state().ghosts = vec!["ghost-Q5_0.gguf".to_owned()];
    let error = world.fetch("org/tiny:Q5_0").unwrap_err();
    assert!(matches!(&error, HubFault::Status { status: 404, what } if what == "ghost-Q5_0.gguf"), "{error}");
}

#[test]
fn revisions_are_kept_apart_by_name_and_found_again() {
    let world = World::new();
    let path = world.fetch("org/tiny@refs/pr/1:Q4_0").unwrap();
    assert_eq!(fs::read_to_string(world.repo("refs/refs/pr/1")).unwrap(), COMMIT);
    assert_eq!(world.offline("org/tiny@refs/pr/1:Q4_0").unwrap(), path);
    assert!(matches!(world.offline("org/tiny:Q4_0"), Err(HubFault::Offline { .. })), "main was never asked for");
    world.fetch(&format!("org/tiny@{COMMIT}:Q4_0")).unwrap();
    assert!(!world.repo(&format!("refs/{COMMIT}")).exists());
}

#[test]
fn a_repository_that_was_renamed_is_followed() {
    let world = World::new();
    let path = world.fetch("old/name:config.gguf").map(drop).unwrap_err();
    assert!(path.is_usage(), "{path}");
    let path = world.fetch("old/name:Q4_0").unwrap();
    assert_eq!(fs::read(path).unwrap(), weights(1));
    assert!(
        world
            .hub
            .take_requests()
            .iter()
            .any(|request| *request == format!("HEAD /{REPO}/resolve/{COMMIT}/m-Q4_0.gguf"))
    );
}

#[test]
fn a_hub_that_says_later_is_asked_later() {
    let world = World::new();
    world.hub.state().statuses = [503, 429].into();
    world.fetch("org/tiny:Q4_0").unwrap();
    world.hub.state().statuses = [500; 3].into();
    let path = world.fetch("org/tiny:Q4_0").unwrap();
    assert!(path.exists(), "a hub in trouble is no reason to do without the cache");
    world.hub.state().statuses = [500; 3].into();
    let error = world.fetch("org/tiny:Q8_0").unwrap_err();
    assert!(matches!(error, HubFault::Status { status: 500, .. }), "{error}");
}

#[test]
fn a_hub_that_cannot_be_reached_leaves_the_cache() {
    let mut world = World::new();
    let path = world.fetch("org/tiny:Q4_0").unwrap();
    // A port that was just given back: nobody listens there.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    world.settings.endpoint = Some(format!("http://127.0.0.1:{port}"));
    assert_eq!(world.fetch("org/tiny:Q4_0").unwrap(), path);
    let error = world.fetch("org/tiny:Q8_0").unwrap_err();
    assert!(matches!(error, HubFault::Unreachable { .. }) && !error.is_usage(), "{error}");
    let error = world.offline("org/tiny:Q8_0").unwrap_err();
    assert!(error.to_string().contains("HF_HUB_OFFLINE is set") && !error.hints().is_empty(), "{error}");
}

#[test]
fn a_slow_host_is_waited_for_and_a_silent_one_is_not() {
    let mut world = World::new();
    // Twenty pieces: slower in all than any one of them may be.
    world.hub.state().delay = Duration::from_millis(100);
    world.settings.patience.silence = Duration::from_millis(1500);
    world.fetch("org/tiny:Q4_0").unwrap();
    // Silent after every quarter: each attempt brings one, so that none of them is in vain.
    {
        let mut state = world.hub.state();
        (state.delay, state.silent_after) = (Duration::ZERO, Some(50_001));
    }
    world.settings.patience.silence = Duration::from_secs(1);
    world.ranges();
    assert_eq!(fs::read(world.fetch("org/tiny:Q8_0").unwrap()).unwrap(), weights(2));
    assert!(world.ranges().len() > 3);
    world.hub.state().is_mute = true;
    let start = Instant::now();
    let error = world.fetch("org/tiny:F16").unwrap_err();
    assert!(matches!(error, HubFault::Cut { done_bytes: 0, total_bytes: 200_003, .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn names_from_the_hub_stay_inside_the_cache() {
    let world = World::new();
    world.hub.state().ghosts = ["../../evil-Q6_K.gguf", "/evil-Q6_K.gguf", "a\\evil-Q6_K.gguf", "a/../evil-Q6_K.gguf"]
        .map(str::to_owned)
        .to_vec();
    let error = world.fetch("org/tiny:Q6_K").unwrap_err();
    assert!(matches!(error, HubFault::Choice(_)), "{error}");
    for etag in ["../evil", "a/b", "..", ""] {
        world.hub.state().etag = Some(etag.to_owned());
        let error = world.fetch("org/tiny:Q4_0").unwrap_err();
        assert!(matches!(error, HubFault::Answer { .. }), "{etag}: {error}");
    }
}

#[test]
fn a_name_with_a_space_is_asked_for_as_urls_are_written() {
    let world = World::new();
    world.hub.state().files.insert("my model.gguf".to_owned(), weights(7));
    assert_eq!(fs::read(world.fetch("org/tiny:my model.gguf").unwrap()).unwrap(), weights(7));
}

#[test]
fn fetches_at_once_bring_the_file_once() {
    let world = World::new();
    world.hub.state().delay = Duration::from_millis(5);
    let barrier = Barrier::new(4);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                barrier.wait();
                assert_eq!(fs::read(world.fetch("org/tiny:Q4_0").unwrap()).unwrap(), weights(1));
            });
        }
    });
    assert_eq!(world.ranges(), ["bytes=0-"]);
}
