//! Exit code 3: what does not fit is refused before it is tried, with the numbers that help.

mod debug;
#[cfg(target_os = "linux")]
mod limit;
#[cfg(target_os = "linux")]
mod long;
#[cfg(target_os = "linux")]
mod machine;
#[cfg(target_os = "linux")]
mod outside;
#[cfg(target_os = "linux")]
mod watch;

use crate::{
    Folder, finish, golden,
    model_file::{ModelFile, Setting},
    plimsoll, run, run_ids,
};

const MIB: u64 = 1 << 20;

/// The longest context that a refusal names.
#[track_caller]
fn named_context(error: &str) -> usize {
    let (_, rest) = error.split_once("a context of ").unwrap_or_else(|| panic!("no context: {error}"));
    rest.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn weights_that_do_not_fit_are_refused_before_they_are_read() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let folder = Folder::new();
    for budget in ["0", "1KiB", "100KiB"] {
        let error = run_ids(&folder, &golden.model, &golden.ids, &["--memory-budget", budget]).fails(3);
        assert!(error.contains("loading the weights") && error.contains("no context fits"), "{error}");
        assert!(error.contains("  hint: ") && error.contains("--memory-budget"), "{error}");
    }
    let error = run_ids(&folder, &golden.model, &golden.ids, &["--memory-budget", "1MiB"]).fails(3);
    // What is resident before the load is more than that.
    assert!(error.contains("loading the weights") && error.contains("1048576 bytes"), "{error}");
}

/// What is written or kept of each step and chunk is paid for, or not kept: one row a chunk makes the most of them.
#[test]
fn traces_and_reports_of_many_chunks_stay_within_the_plan() {
    let folder = Folder::new();
    for (name, tokens) in [("tiny-qwen3_next", 300), ("tiny-one-row", 6_000)] {
        let Some(golden) = golden(name) else { return };
        let ids: Vec<u32> = golden.ids.iter().cycle().copied().take(tokens).collect();
        let (csv, svg, hashes) = (folder.arg("t.csv"), folder.arg("t.svg"), folder.arg("hashes"));
        let traces = [&[][..], &["--memory-trace", &csv], &["--memory-trace", &svg], &["--trace-hashes", &hashes]];
        // Long prompts are slow to trace, and what is kept of a chunk shows without.
        for trace in &traces[..if tokens > 1_000 { 1 } else { 4 }] {
            let args = [&["--json", "-n", "1", "--chunk", "1", "--threads", "1"][..], trace].concat();
            let json = run_ids(&folder, &golden.model, &ids, &args).json();
            assert_eq!(json["chunks"].as_array().unwrap().len(), tokens);
            let bytes = |name: &str| json["memory"][name].as_u64().unwrap();
            let (plan, measured) = (bytes("planned_peak_bytes"), bytes("measured_peak_bytes"));
            assert!(measured <= plan, "{name} {trace:?}: {measured} bytes measured, {plan} planned");
            // What is live is not all that is resident: the system counts whole pages.
            let footprint = json["memory"]["footprint_peak_bytes"].as_u64().unwrap_or(0);
            assert!(footprint <= plan + MIB, "{name} {trace:?}: footprint {footprint}, {plan} planned");
        }
    }
}

#[test]
fn the_longest_context_that_a_refusal_names_fits_and_one_token_more_does_not() {
    // A block of 64 tokens of KV is 4 MiB: far above what the resident size differs by between two runs.
    let folder = Folder::new();
    let model = folder.file("wide.gguf", ModelFile::wide(128).bytes());
    let prompt: Vec<u32> = (0..400).map(|i| i % 16).collect();
    let run = |prompt: &[u32], max_tokens: usize, budget_bytes: u64, more: &[&str]| {
        let (max_tokens, budget) = (max_tokens.to_string(), budget_bytes.to_string());
        let settings = ["--json", "--kv-dtype", "f32", "--threads", "1", "-n", &max_tokens, "--memory-budget", &budget];
        run_ids(&folder, model.as_ref(), prompt, &[&settings[..], more].concat())
    };
    for more in [&[][..], &["--chunk", "16"]] {
        let roomy = run(&prompt[..64], 64, 4096 * MIB, more).json();
        let two_blocks = roomy["memory"]["planned_peak_bytes"].as_u64().unwrap();
        let budget_bytes = two_blocks + 4 * MIB + 2 * MIB; // a block more, and half of one
        let refusal = run(&prompt[..64], 200, budget_bytes, more).fails(3);
        let longest = named_context(&refusal);
        // Three blocks, and the last token of the answer, which has no keys and values.
        assert_eq!(longest, 193, "{refusal}");
        assert!(refusal.contains(&format!("the budget is {budget_bytes} bytes")), "{refusal}");
        assert!(refusal.contains("the prompt with its answer needs "), "{refusal}");

        let fits = run(&prompt[..64], longest - 64, budget_bytes, more).json();
        assert!(fits["memory"]["planned_peak_bytes"].as_u64().unwrap() <= budget_bytes);
        assert_eq!(fits["tokens"].as_array().unwrap().len(), longest - 64);
        let error = run(&prompt[..64], longest - 63, budget_bytes, more).fails(3);
        assert_eq!(named_context(&error), longest);

        // A prompt that is too long by itself: the context it names holds a prompt and its answer.
        let error = run(&prompt, 1, budget_bytes, more).fails(3);
        assert_eq!(named_context(&error), longest, "{error}");
        run(&prompt[..longest - 1], 1, budget_bytes, more).json();
        run(&prompt[..longest], 1, budget_bytes, more).fails(3);

        // Without a limit the answer takes what fits.
        let settings = ["--json", "--kv-dtype", "f32", "--threads", "1", "--memory-budget", &budget_bytes.to_string()];
        let open = run_ids(&folder, model.as_ref(), &prompt[..64], &[&settings[..], more].concat()).json();
        assert_eq!(open["tokens"].as_array().unwrap().len(), longest - 64);
        assert_eq!(open["finish_reason"], "length");
        // That memory is what ended it is said once; a length that was asked for is no news.
        let warnings = |more: &[&str]| {
            let ids = folder.ids(&prompt[..64]);
            let mut command = plimsoll(["run", "-m", &model, "--token-ids", &ids].iter().chain(&settings).chain(more));
            command.env("PLIMSOLL_LOG", "plimsoll=warn");
            let stderr = finish(command).stderr;
            stderr.lines().filter(|line| line.contains("the answer ends")).map(str::to_owned).collect::<Vec<_>>()
        };
        let told = warnings(more);
        let part = format!("the answer ends after {} tokens, for which there was memory", longest - 64);
        assert!(told.len() == 1 && told[0].contains(&part), "{told:?}");
        assert!(warnings(&[more, &["-n", "8"]].concat()).is_empty());
    }
}

#[test]
fn the_smallest_budget_of_a_model_that_is_quantized_while_it_is_read_is_enough() {
    for name in ["tiny-f16", "tiny-qwen3_moe", "tiny-bf16"] {
        let Some(golden) = golden(name) else { return };
        let folder = Folder::new();
        let ids = folder.ids(&(0..300).map(|i| i % 60).collect::<Vec<u32>>());
        let settings =
            ["-m", golden.model.to_str().unwrap(), "-n", "2", "--quantize", "q8_0", "--threads", "1", "--json"];
        let estimate = run(["estimate", "--context", "300", "--memory-budget", "1GiB"].iter().chain(&settings)).json();
        let budget = estimate["smallest_budget_bytes"].as_u64().unwrap().to_string();
        run(["run", "--token-ids", &ids, "--memory-budget", &budget].iter().chain(&settings)).json();
    }
}

#[test]
fn logits_of_every_row_are_paid_for_at_admission() {
    // The head is the widest product: 64 rows of it outweigh everything else.
    let folder = Folder::new();
    let mut file = ModelFile::wide(1);
    file.tensors.retain(|tensor| tensor.name != "token_embd.weight");
    file.add("token_embd.weight", &[65_536, 4]);
    let model = folder.file("vocab.gguf", file.bytes());
    let prompt: Vec<u32> = (0..400).collect();
    let out = folder.arg("out.safetensors");
    let run = |rows: &str, budget_bytes: u64| {
        let budget = budget_bytes.to_string();
        let more = [
            "--json",
            "--threads",
            "1",
            "-n",
            "1",
            "--logit-rows",
            rows,
            "--logits-out",
            &out,
            "--memory-budget",
            &budget,
        ];
        run_ids(&folder, model.as_ref(), &prompt, &more)
    };
    let last = run("last", 4096 * MIB).json();
    let budget_bytes = last["memory"]["planned_peak_bytes"].as_u64().unwrap() + 8 * MIB;
    run("last", budget_bytes).json();
    let error = run("all", budget_bytes).fails(3);
    assert!(error.contains("the prompt with its answer"), "refused at admission: {error}");
    let all = run("all", budget_bytes + 32 * MIB).json();
    assert_eq!(all["first_logits_sha256"], last["first_logits_sha256"]);
    assert!(all["chunks"].as_array().unwrap().len() >= 3, "{}", all["chunks"]);
}

#[test]
fn a_chunk_that_was_fixed_and_does_not_fit_is_refused() {
    let folder = Folder::new();
    let model = folder.file("wide.gguf", ModelFile::wide(128).bytes());
    let prompt: Vec<u32> = (0..400).map(|i| i % 16).collect();
    let run = |chunk: &str, budget_bytes: u64| {
        let budget = budget_bytes.to_string();
        let more = ["--json", "--threads", "1", "-n", "1", "--chunk", chunk, "--memory-budget", &budget];
        run_ids(&folder, model.as_ref(), &prompt, &more)
    };
    let small = run("16", 4096 * MIB).json();
    let budget_bytes = small["memory"]["planned_peak_bytes"].as_u64().unwrap() + 2 * MIB;
    let error = run("400", budget_bytes).fails(3);
    let (_, rest) = error.split_once("lower --chunk to ").unwrap_or_else(|| panic!("no chunk: {error}"));
    let rows = rest.split([',', '\n']).next().unwrap();
    assert_eq!(run(rows, budget_bytes).json()["chunks"][0]["rows"], rows.parse::<u64>().unwrap());
    let auto = run("16", budget_bytes).json();
    assert_eq!(auto["first_logits_sha256"], small["first_logits_sha256"]);
}

#[test]
fn a_text_that_no_context_can_hold_is_refused_before_it_is_tokenized() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let folder = Folder::new();
    let model = golden.model.to_str().unwrap();
    // 4 million letters; no token of this vocabulary is near as long as the context is short.
    let prompt = folder.file("long.txt", "a".repeat(4_000_000));
    let start = std::time::Instant::now();
    let budget = ["--memory-budget", "128MiB"];
    let error = run(["run", "-m", model, "--prompt-file", &prompt, "-n", "1"].iter().chain(&budget)).fails(3);
    assert!(error.contains("the prompt with its answer") && named_context(&error) > 0, "{error}");
    assert!(start.elapsed().as_secs() < 20, "it was tokenized first");
    // Ids are as many as they are: the text of them is what does not fit.
    let ids = folder.file("ids.txt", "1 ".repeat(9_000_000));
    let error = run(["run", "-m", model, "--token-ids", &ids, "-n", "1"].iter().chain(&budget)).fails(3);
    assert!(error.contains("reading the ids"), "{error}");
}

#[test]
fn a_chat_template_that_takes_more_than_the_budget_has_is_refused() {
    let folder = Folder::new();
    let mut file = ModelFile::sentencepiece();
    let mut run = |template: &str| {
        file.set("tokenizer.chat_template", Setting::Text(template.to_owned()));
        let model = folder.file("chat.gguf", file.bytes());
        run(["run", "-m", &model, "--prompt", "a", "-n", "1", "--json", "--memory-budget", "32MiB"])
    };
    run("{{ messages[0].content }}").json();
    // 128 KiB of text, and 350 copies at once, of which nothing is written.
    let long = format!("{{% set s = 'a ' %}}{}", "{% set s = s ~ s %}".repeat(16));
    let copies: String = (0..350).map(|i| format!("{{% set s{i} = s ~ {i} %}}")).collect();
    let hoard = format!("{long}{copies}{{{{ messages[0].content }}}}");
    let error = run(&hoard).fails(3);
    assert!(error.contains("rendering the chat template needs "), "{error}");
    // A text of 640 KiB from a prompt of one letter: its ids are what does not fit.
    let error = run(&format!("{long}{}", "{{ s }}".repeat(5))).fails(3);
    assert!(error.contains("tokenizing the prompt needs "), "{error}");
}

#[test]
#[cfg(unix)]
fn an_input_without_end_is_refused() {
    let Some(golden) = golden("tiny-one-row") else { return };
    let model = golden.model.to_str().unwrap();
    for flag in ["--prompt-file", "--token-ids"] {
        let error = run(["run", "-m", model, flag, "/dev/zero", "--memory-budget", "64MiB"]).fails(3);
        assert!(error.contains("reading the prompt"), "{error}");
    }
}

/// Threads need address space for their stacks: where there is none for so many, the count is told and nothing panics.
#[test]
#[cfg(target_os = "linux")]
fn threads_that_cannot_be_started_are_told() {
    let Some(golden) = golden("tiny-one-row") else { return };
    let folder = Folder::new();
    let ids = folder.ids(&[1]);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -v 600000; exec \"$0\" \"$@\""]).arg(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(["run", "--token-ids", &ids, "-n", "1", "--threads", "1000", "-m"]).arg(&golden.model);
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.starts_with("error: cannot start 1000 threads: ") && stderr.contains("--threads"), "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
}

/// File pages leave the resident set once their tensor is packed, and there is no second copy of anything.
#[test]
#[ignore = "slow: 1 s, needs the default model"]
fn what_is_resident_after_load_is_at_most_fifteen_percent_more_than_the_file() {
    let model = std::env::var_os("PLIMSOLL_TEST_MODEL").expect("PLIMSOLL_TEST_MODEL names the default model's file");
    let file_bytes = std::fs::metadata(&model).unwrap().len();
    let folder = Folder::new();
    let json = run_ids(&folder, model.as_ref(), &[1, 2, 3], &["--json", "-n", "0"]).json();
    let Some(resident_bytes) = json["memory"]["resident_after_load_bytes"].as_u64() else {
        println!("NOT RUN: this platform does not tell what is resident");
        return;
    };
    let ratio = resident_bytes as f64 / file_bytes as f64;
    println!("resident after load: {resident_bytes} bytes, {ratio:.3} times the file");
    assert!(ratio <= 1.15, "{resident_bytes} bytes are resident, {ratio:.3} times the file");
}
