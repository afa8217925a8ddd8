//! `hf:` names, against a hub on the loopback.

use crate::{Folder, Ran, finish, golden, plimsoll};
use server::{COMMIT, Hub};
use std::{
    fs,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

#[allow(dead_code, reason = "the unit tests use all of it")]
#[path = "../../src/hub/tests/server.rs"]
mod server;

/// The program, with the hub and a home of its own.
fn with_hub(hub: &Hub, folder: &Folder, args: &[&str]) -> Command {
    let mut command = plimsoll(args);
    command.env("HF_ENDPOINT", format!("{}/", hub.endpoint())).env("HF_HOME", folder.path("home"));
    // A proxy of the caller's knows nothing of this machine.
    for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env_remove(name);
    }
    command
}

fn run(hub: &Hub, folder: &Folder, args: &[&str]) -> Ran {
    finish(with_hub(hub, folder, args))
}

#[test]
fn a_model_runs_by_its_name_and_again_without_the_hub() {
    let Some(golden) = golden("tiny-one-row") else { return };
    let (folder, content) = (Folder::new(), fs::read(&golden.model).unwrap());
    let hub = Hub::new([("tiny-F32.gguf", content.clone()), ("other-Q8_0.gguf", b"GGUF?".to_vec())]);
    let ids = folder.ids(&[1, 2, 3]);
    let args = ["run", "-m", "hf:org/tiny:f32", "--token-ids", &ids, "-n", "4", "--json"];
    hub.state().cuts = [1000].into();
    let by_name = run(&hub, &folder, &args).json();
    let by_path = crate::run(["run", "-m", golden.model.to_str().unwrap()].iter().chain(&args[3..])).json();
    assert_eq!(by_name["first_logits_sha256"], by_path["first_logits_sha256"]);
    assert_eq!(by_name["tokens"], by_path["tokens"]);

    let printed = run(&hub, &folder, &["models", "fetch", "hf:org/tiny:tiny-F32.gguf"]).ok();
    let path = folder.path("home/hub/models--org--tiny/snapshots").join(COMMIT).join("tiny-F32.gguf");
    assert_eq!(printed, format!("{}\n", path.display()));
    assert_eq!(fs::read(path).unwrap(), content);

    hub.take_requests();
    let offline = |args: &[&str]| {
        let mut command = with_hub(&hub, &folder, args);
        command.env("HF_HUB_OFFLINE", "1");
        finish(command)
    };
    assert_eq!(offline(&args).json()["tokens"], by_path["tokens"]);
    let error = offline(&["models", "fetch", "hf:org/tiny:Q8_0"]).fails(1);
    assert!(
        error.contains("cannot fetch hf:org/tiny:Q8_0: HF_HUB_OFFLINE is set") && error.contains("-m FILE"),
        "{error}"
    );
    assert_eq!(hub.take_requests(), [""; 0], "the network was asked");
}

#[test]
fn a_folder_of_the_hub_runs_by_its_name() {
    let Some(golden) = golden("tiny-qwen3-sharded") else { return };
    let (folder, from) = (Folder::new(), golden.model.parent().unwrap());
    let names: Vec<String> =
        fs::read_dir(from).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    let hub = Hub::new(names.iter().map(|name| (name.as_str(), fs::read(from.join(name)).unwrap())));
    let ids = folder.ids(&golden.ids);
    let args = ["run", "-m", "hf:org/tiny", "--token-ids", &ids, "-n", "4", "--kv-dtype", "f32", "--json"];
    let json = run(&hub, &folder, &args).json();
    let want: Vec<_> = golden.greedy[..4].iter().map(|&id| serde_json::Value::from(id)).collect();
    assert_eq!(json["tokens"], serde_json::Value::from(want));
    let large = |request: &&String| request.starts_with("GET /cdn/");
    let fetched = hub.take_requests().iter().filter(large).count();
    assert_eq!(fetched, names.iter().filter(|name| name.starts_with("model-0")).count(), "{names:?}");
}

#[test]
fn the_environment_names_cache_and_token() {
    let folder = Folder::new();
    let hub = Hub::new([("m.gguf", b"GGUF and no more".to_vec())]);
    hub.state().token = Some("secret".to_owned());
    let fetch = ["models", "fetch", "hf:org/tiny"];
    let error = run(&hub, &folder, &fetch).fails(1);
    assert!(error.contains("no token was given") && error.contains("HF_TOKEN") && !error.contains("secret"), "{error}");
    fs::create_dir_all(folder.path("home")).unwrap();
    folder.file("home/token", "secret\n");
    run(&hub, &folder, &fetch).ok();
    let with = |name: &str, value: &str| {
        let mut command = with_hub(&hub, &folder, &fetch);
        command.env("HF_HUB_CACHE", folder.path("elsewhere")).env(name, value);
        finish(command)
    };
    with("HF_TOKEN", "wrong").fails(1);
    with("HF_TOKEN", "se cret").fails(2);
    with("HF_TOKEN_PATH", &folder.file("mine", "wrong")).fails(1);
    assert!(with("HF_TOKEN", "secret").ok().starts_with(&folder.arg("elsewhere")));
    assert!(with("HF_ENDPOINT", "ftp://x").fails(2).contains("ftp://x"));
}

#[test]
fn what_the_hub_lacks_is_a_fault_of_the_name() {
    let folder = Folder::new();
    let hub = Hub::new([("a-Q4_0.gguf", b"a".to_vec()), ("a-Q8_0.gguf", b"b".to_vec())]);
    for (name, part) in [
        ("hf:org/other", "no such repository"),
        ("hf:org/tiny@v9", "no such repository or revision"),
        ("hf:org/tiny", "a-Q4_0.gguf, a-Q8_0.gguf"),
        ("hf:org/tiny:Q5_K_M", "named after Q5_K_M"),
        ("hf:org/tiny:b.gguf", "no file b.gguf"),
    ] {
        let error = run(&hub, &folder, &["run", "--prompt", "x", "-m", name]).fails(2);
        assert!(error.contains(&format!("cannot fetch {name}: ")) && error.contains(part), "{error}");
    }
}

#[test]
fn ctrl_c_ends_a_fetch_and_the_next_one_goes_on() {
    let folder = Folder::new();
    let content: Vec<u8> = (0..100_000u32).map(|i| i.to_le_bytes()[0]).collect();
    let hub = Hub::new([("m.gguf", content.clone())]);
    hub.state().silent_after = Some(5_000);
    let fetch = ["models", "fetch", "hf:org/tiny"];
    let child = with_hub(&hub, &folder, &fetch).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let part = folder.path("home/hub/models--org--tiny/blobs").join(server::sha256(&content) + ".plimsoll-part");
    let start = Instant::now();
    while fs::metadata(&part).map_or(0, |metadata| metadata.len()) == 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing came");
        thread::sleep(Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "error: cancelled while fetching hf:org/tiny\n");
    assert_eq!(output.status.code(), Some(1));
    assert!(start.elapsed() < Duration::from_secs(60));
    hub.state().silent_after = None;
    hub.take_requests();
    let path = run(&hub, &folder, &fetch).ok();
    assert_eq!(fs::read(path.trim_end()).unwrap(), content);
    let ranges: Vec<_> = hub.take_requests().into_iter().filter(|request| request.contains("/cdn/")).collect();
    assert_eq!(ranges, ["GET /cdn/m.gguf bytes=5000-"]);
}
