//! `plimsoll estimate`: the numbers that `run` reserves, before there is anything to run.

use crate::{
    Folder, Ran, golden,
    model_file::{ModelFile, Setting},
    run, run_ids,
};
use serde_json::{Value, json};
use std::path::Path;

const MIB: u64 = 1 << 20;

/// How much more an estimate may state as overhead than a run measures; never less.
const OVERHEAD_SLACK_BYTES: u64 = 2 * MIB;

/// What the resident size differs by from one run to the next.
const JITTER_BYTES: u64 = 256 << 10;

fn estimate(model: &Path, context: usize, max_tokens: usize, more: &[&str]) -> Ran {
    let (context, max_tokens) = (context.to_string(), max_tokens.to_string());
    let model = model.to_str().unwrap();
    let args = ["estimate", "-m", model, "--context", &context, "-n", &max_tokens];
    run(args.iter().chain(more))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number of bytes"))
}

/// A model whose KV is 4 MiB for 64 tokens, and a prompt.
fn wide(folder: &Folder, tokens: u32) -> (String, Vec<u32>) {
    (folder.file("wide.gguf", ModelFile::wide(128).bytes()), (0..tokens).map(|i| i % 16).collect())
}

/// Compares what `run` reserved with what `estimate` says, byte by byte but for the overhead.
#[track_caller]
fn agree(model: &Path, ids: &[u32], more: &[&str]) {
    let folder = Folder::new();
    let ran = run_ids(&folder, model, ids, &[&["--json", "-n", "1"], more].concat()).json();
    let answer = estimate(model, ids.len(), 1, &[&["--json"], more].concat()).json();
    let memory = &ran["memory"];
    let context = format!("{more:?}\n{answer}\n{memory}");
    assert_eq!(answer["weights_bytes"], memory["weights_bytes"], "{context}");
    // The last token of an answer is never fed back; its place makes no other block here.
    assert_ne!(ids.len() % 64, 0, "another prompt is wanted");
    assert_eq!(answer["kv_bytes"], memory["kv_bytes"], "{context}");
    let held = ["weights_bytes", "overhead_bytes", "kv_bytes"].map(|name| number(&memory[name]));
    let transient = number(&memory["planned_peak_bytes"]) - held.iter().sum::<u64>();
    assert_eq!(number(&answer["transient_bytes"]), transient, "{context}");
    assert_eq!(answer["transient_source"], "program");
    assert_eq!(answer["chunk"], ran["chunks"][0]["rows"], "{context}");
    let (estimated, measured) = (number(&answer["overhead_bytes"]), held[1]);
    assert!((measured..=measured + OVERHEAD_SLACK_BYTES).contains(&estimated), "{estimated} for {measured}: {context}");
    let peak = number(&memory["planned_peak_bytes"]) - measured + estimated;
    assert_eq!(number(&answer["peak_bytes"]), peak, "{context}");
    assert_eq!((answer["fits"].as_bool(), &answer["budget_bytes"]), (Some(true), &memory["budget_bytes"]), "{context}");
}

#[test]
fn an_estimate_states_what_a_run_reserves() {
    let folder = Folder::new();
    for name in ["tiny-gqa-6x2", "tiny-k-quants", "tiny-bf16"] {
        let Some(golden) = golden(name) else { return };
        let ids: Vec<u32> = golden.ids.iter().copied().cycle().take(199).collect();
        for more in [
            &["--threads", "1"][..],
            &["--threads", "3", "--kv-dtype", "f32", "--memory-budget", "1GiB"],
            &["--chunk", "17", "--attention", "reference", "--cpu", "scalar", "--threads", "2"],
        ] {
            agree(&golden.model, &ids, more);
        }
    }
    let (model, prompt) = wide(&folder, 1_400);
    agree(Path::new(&model), &prompt, &["--threads", "1", "--memory-budget", "2GiB"]);
}

#[test]
fn a_folder_is_priced_as_it_runs() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let models = golden.model.parent().unwrap().parent().unwrap();
    for name in ["tiny-gemma3", "tiny-qwen3_moe", "tiny-qwen3_next"] {
        let model = models.join(name);
        assert!(model.is_dir(), "{}", model.display());
        let ids: Vec<u32> = (0..77).map(|id| id % 7).collect();
        agree(&model, &ids, &["--threads", "2", "--memory-budget", "1GiB"]);
        agree(&model, &ids, &["--threads", "1", "--quantize", "q8_0", "--chunk", "5"]);
    }
}

#[test]
fn what_fits_runs_and_what_does_not_ends_with_exit_code_3() {
    let folder = Folder::new();
    let (model, prompt) = wide(&folder, 700);
    let model = Path::new(&model);
    let settings = ["--json", "--kv-dtype", "f32", "--threads", "1"];
    let fits = |bytes: u64| {
        let answer = estimate(model, 700, 20, &[&settings[..], &["--memory-budget", &bytes.to_string()]].concat());
        answer.json()["fits"].as_bool().unwrap()
    };
    let (mut refused, mut fitting) = (0, 4096 * MIB);
    while fitting - refused > 1 {
        let middle = refused + (fitting - refused) / 2;
        if fits(middle) {
            fitting = middle;
        } else {
            refused = middle;
        }
    }
    let answer = estimate(model, 700, 20, &settings).json();
    let stated = number(&answer["smallest_budget_bytes"]);
    // The overhead is measured anew each time, and rounded up to 256 KiB.
    assert!(fitting.abs_diff(stated) <= JITTER_BYTES, "{fitting} by bisection, stated {stated}");

    let run_at = |bytes: u64| {
        run_ids(
            &folder,
            model,
            &prompt,
            &[&settings[..], &["-n", "20", "--memory-budget", &bytes.to_string()]].concat(),
        )
    };
    let ran = run_at(fitting).json();
    assert!(ran["chunks"].as_array().unwrap().len() >= 700 / 64, "{}", ran["chunks"]);
    // Below, a run ends at its own border: what it measures as overhead is at most what was estimated.
    let slack = number(&answer["overhead_bytes"]) - number(&ran["memory"]["overhead_bytes"]);
    assert!(slack <= OVERHEAD_SLACK_BYTES, "{slack}");
    let error = run_at(fitting - slack - JITTER_BYTES).fails(3);
    assert!(error.contains("a context of "), "{error}");
    assert_eq!(run_at(fitting - slack + JITTER_BYTES).code, Some(0));
}

#[test]
fn the_longest_prompt_grows_with_the_budget_and_is_the_border() {
    let folder = Folder::new();
    let (model, _) = wide(&folder, 1);
    let model = Path::new(&model);
    let answer = |context: usize, budget: u64, more: &[&str]| {
        let budget = budget.to_string();
        let settings = ["--json", "--threads", "1", "--memory-budget", &budget];
        estimate(model, context, 0, &[&settings[..], more].concat()).json()
    };
    let mut last = 0;
    for budget in [0, 1, 8, 32, 100, 400, 1_000] {
        let found = answer(100, budget * MIB, &[]);
        let longest = number(&found["max_context"]);
        assert!(longest >= last, "{found}");
        assert_eq!(found["fits"].as_bool().unwrap(), longest >= 100, "{found}");
        last = longest;
    }
    assert!(last > 1_000, "{last}");
    // A prompt on either side of the border; the overhead may differ by a step between the calls, and a block of KV is more than that.
    let longest = usize::try_from(last).unwrap();
    assert_eq!(answer(longest - 64, 1_000 * MIB, &[])["fits"], true);
    assert_eq!(answer(longest + 64, 1_000 * MIB, &[])["fits"], false);
    let refused = answer(100_000, 100 * MIB, &[]);
    assert_eq!((refused["fits"].as_bool(), refused["chunk"].as_u64()), (Some(false), Some(64)), "{refused}");
    assert!(number(&refused["peak_bytes"]) > 100 * MIB);
}

#[test]
fn a_config_alone_is_priced_by_the_program() {
    let folder = Folder::new();
    let llama = json!({
        "model_type": "llama", "vocab_size": 128_256, "hidden_size": 4_096, "intermediate_size": 14_336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0, "tie_word_embeddings": false,
    });
    let config = folder.file("config.json", llama.to_string());
    let args = ["estimate", "--config", &config, "--context", "131072", "--memory-budget", "36GiB", "--json"];
    let answer = run(args).json();
    assert_eq!(answer["transient_source"], "program", "{answer}");
    assert_eq!(number(&answer["kv_bytes"]), 16 << 30);
    // Matrices in bf16, norms in f32, and 64 frequencies.
    let norms = (2 * 32 + 1) * 4_096;
    assert_eq!(number(&answer["weights_bytes"]), 2 * (8_030_261_248 - norms) + 4 * norms + 4 * 64);
    assert_eq!(answer["fits"], true);
    let quantized = run(args.iter().copied().chain(["--quantize", "q4_k"])).json();
    assert!(number(&quantized["weights_bytes"]) < number(&answer["weights_bytes"]) / 3, "{quantized}");
    let text = run(&args[..args.len() - 1]).ok();
    assert!(text.contains("plan of the program") && text.contains("It fits.") && text.contains("36 GiB"), "{text}");
    // The environment names it as well, and a flag goes before it.
    let mut command = crate::plimsoll(["estimate", "--context", "64", "--json"]);
    command.env("PLIMSOLL_CONFIG", &config);
    assert_eq!(crate::finish(command).json()["model"], "llama");
    let error = run(["estimate", "--config", &config, "-m", &config, "--context", "1"]).fails(2);
    assert!(error.contains("two models"), "{error}");
}

#[test]
fn what_has_no_program_is_a_closed_form_and_says_so() {
    let folder = Folder::new();
    let config = folder.file(
        "config.json",
        json!({
            "model_type": "gpt_oss", "vocab_size": 201_088, "hidden_size": 2_880, "intermediate_size": 2_880,
            "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128,
            "num_local_experts": 32, "num_experts_per_tok": 4, "max_position_embeddings": 131_072, "tie_word_embeddings": false,
            "quantization_config": {"quant_method": "mxfp4"},
        })
        .to_string(),
    );
    let args = ["estimate", "--config", &config, "--context", "8192", "--memory-budget", "16GiB"];
    let answer = run(args.iter().copied().chain(["--json"])).json();
    assert_eq!(answer["transient_source"], "closed form", "{answer}");
    let notes = answer["notes"].to_string();
    assert!(notes.contains("no program for gpt_oss") && notes.contains("estimates"), "{notes}");
    let text = run(args).ok();
    assert!(text.contains("closed form: an estimate") && text.contains("note: "), "{text}");
    let error = run(["plan", "--config", &config, "--context", "64"]).fails(4);
    assert!(error.contains("no program"), "{error}");

    // A GGUF file of such an architecture, header and all.
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let mut file = ModelFile::read(&golden.model);
    for (key, setting) in &mut file.keys {
        *key = key.replace("llama.", "mistral.");
        if key == "general.architecture" {
            *setting = Setting::Text("mistral".to_owned());
        }
    }
    let model = folder.file("mistral.gguf", file.bytes());
    for flag in ["-m", "--config"] {
        let answer = run(["estimate", flag, &model, "--context", "100", "--json"]).json();
        assert_eq!(answer["transient_source"], "closed form", "{answer}");
        assert!(number(&answer["weights_bytes"]) > 0 && number(&answer["kv_bytes"]) > 0, "{answer}");
    }
}

/// A config.json of Llama's sizes, without experts; `changes` go over it.
fn config_of(model_type: &str, changes: &[(&str, Value)]) -> String {
    let mut config = json!({
        "model_type": model_type, "vocab_size": 32_000, "hidden_size": 512, "intermediate_size": 1_024, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 4_096, "rms_norm_eps": 1e-5,
    });
    let experts = [("num_experts_per_tok", 2), ("moe_intermediate_size", 256)];
    match model_type {
        "qwen3_moe" => {
            experts.iter().chain(&[("num_experts", 8)]).for_each(|&(field, value)| config[field] = json!(value))
        }
        "gpt_oss" => experts[..1].iter().chain(&[("num_local_experts", 8), ("sliding_window", 128)]).for_each(
            |&(field, value)| {
                config[field] = json!(value);
            },
        ),
        "deepseek_v3" => {
            let latent = [("kv_lora_rank", 64), ("qk_nope_head_dim", 64), ("qk_rope_head_dim", 32), ("v_head_dim", 64)];
            let all = experts.iter().chain(&latent).chain(&[("n_routed_experts", 8)]);
            all.for_each(|&(field, value)| config[field] = json!(value));
        }
        _ => {}
    }
    for (field, value) in changes {
        config[field] = value.clone();
    }
    config.to_string()
}

#[test]
fn a_config_that_no_model_can_have_is_refused_by_field_value_and_what_is_expected() {
    let folder = Folder::new();
    for model_type in ["llama", "mistral", "qwen3_moe", "gpt_oss", "deepseek_v3"] {
        let config = folder.file("sound.json", config_of(model_type, &[]));
        run(["estimate", "--config", &config, "--context", "64"]).ok();
    }
    let sizes = ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"];
    let mut cases: Vec<(&str, &str, Value, String)> = Vec::new();
    for (model_type, own) in [
        ("llama", &["num_key_value_heads", "intermediate_size", "head_dim"][..]),
        ("mistral", &["num_key_value_heads", "intermediate_size", "head_dim", "sliding_window"]),
        ("gemma3_text", &["sliding_window"]),
        ("gpt_oss", &["num_local_experts", "num_experts_per_tok", "sliding_window"]),
        ("deepseek_v3", &["kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "v_head_dim", "n_routed_experts"]),
        ("qwen3_moe", &["num_experts_per_tok", "moe_intermediate_size"]),
    ] {
        for field in sizes.iter().chain(own) {
            for (value, part) in [
                (json!(0), "1 to "),
                (json!(-8), "a whole number"),
                (json!("8"), "a whole number"),
                (json!(8.0), "a whole number"),
                (json!(1u64 << 40), "1 to "),
                (json!(u64::MAX), "1 to "),
            ] {
                cases.push((model_type, field, value, part.to_owned()));
            }
        }
    }
    for (model_type, field, value, part) in [
        ("llama", "num_key_value_heads", json!(3), "not divisible by"),
        ("mistral", "num_key_value_heads", json!(3), "not divisible by"),
        ("llama", "hidden_size", json!(513), "not divisible by"),
        ("mistral", "hidden_size", json!(513), "not divisible by"),
        ("gpt_oss", "hidden_size", json!(1u64 << 21), "1 to 1048576"),
        ("llama", "hidden_size", json!(1u64 << 21), "1 to 1048576"),
        ("llama", "max_position_embeddings", json!(0), "1 to"),
        ("mistral", "max_position_embeddings", json!("long"), "a whole number"),
        ("gpt_oss", "num_experts_per_tok", json!(9), "more than `num_local_experts` = 8"),
        ("deepseek_v3", "num_experts_per_tok", json!(9), "more than `n_routed_experts` = 8"),
        ("qwen3_moe", "num_experts_per_tok", json!(9), "more than `num_experts` = 8"),
        ("gpt_oss", "layer_types", json!(["full_attention"]), "4 layers"),
        ("qwen3", "layer_types", json!(["full_attention"]), "4 layers"),
        ("qwen3", "max_window_layers", json!(-1), "a whole number"),
        ("gemma3_text", "layer_types", json!(["full_attention"]), "4 layers"),
        ("gemma3_text", "layer_types", json!("full_attention"), "a list of"),
        ("llama", "torch_dtype", json!("banana"), "bfloat16"),
        ("mistral", "tie_word_embeddings", json!("no"), "true or false"),
    ] {
        cases.push((model_type, field, value, part.to_owned()));
    }
    for (model_type, field, value, part) in cases {
        let case = format!("{model_type}: {field} = {value}");
        let config = folder.file("config.json", config_of(model_type, &[(field, value.clone())]));
        for command in ["estimate", "plan"] {
            let error = run([command, "--config", &config, "--context", "64"]).fails(4);
            assert!(error.contains(field) && error.contains(&part), "{case}: {error}");
            let shown = value.to_string();
            assert!(value.is_array() || error.contains(&shown), "{case}: the value is not shown: {error}");
        }
    }
}

#[test]
fn what_is_possible_and_not_run_here_has_figures_and_the_programs_own_reason() {
    let folder = Folder::new();
    let library = |method: &str| json!({"quant_method": method});
    for (model_type, field, value, reason) in [
        ("llama", "rope_scaling", json!({"rope_type": "warp", "factor": 2.0}), "warp"),
        ("llama", "quantization_config", library("fp8"), "quantization_config = fp8 is not supported"),
        ("qwen3", "quantization_config", library("gptq"), "quantization_config = gptq is not supported"),
        ("qwen3_moe", "quantization_config", library("awq"), "quantization_config = awq is not supported"),
        ("llama", "torch_dtype", json!("float8_e4m3fn"), "torch_dtype = \"float8_e4m3fn\" is not supported"),
        ("llama", "hidden_act", json!("relu"), "hidden_act = \"relu\" is not supported"),
        ("gpt_oss", "quantization_config", library("mxfp4"), "there is no program for gpt_oss"),
    ] {
        let config = folder.file("config.json", config_of(model_type, &[(field, value)]));
        let args = ["--config", &config, "--context", "64"];
        let answer = run(["estimate", "--json"].iter().chain(&args)).json();
        assert_eq!(answer["transient_source"], "closed form", "{answer}");
        assert!(number(&answer["weights_bytes"]) > 0 && number(&answer["peak_bytes"]) > 0, "{answer}");
        let notes: Vec<&str> = answer["notes"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert!(notes.iter().any(|note| note.contains(reason)), "{notes:?}");
        let refused = run(["plan"].iter().chain(&args)).fails(4);
        assert!(refused.contains(reason) && refused.contains("has no steps to show"), "{refused}");
    }
}

#[test]
fn a_gguf_header_that_no_model_can_have_is_refused_by_its_key() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let folder = Folder::new();
    let refused = |architecture: &str, key: &str, setting: Setting| {
        let mut file = ModelFile::read(&golden.model);
        for (name, value) in &mut file.keys {
            *name = name.replace("llama.", &format!("{architecture}."));
            if name == "general.architecture" {
                *value = Setting::Text(architecture.to_owned());
            }
        }
        file.set(key, setting);
        let model = folder.file("model.gguf", file.bytes());
        let error = run(["estimate", "--config", &model, "--context", "64"]).fails(4);
        assert!(error.contains(key), "{key}: {error}");
        error
    };
    for architecture in ["llama", "mistral"] {
        for key in ["embedding_length", "block_count", "attention.head_count", "attention.head_count_kv"] {
            let key = format!("{architecture}.{key}");
            for setting in [Setting::U32(0), Setting::I32(-2), Setting::Text("6".to_owned())] {
                refused(architecture, &key, setting);
            }
        }
        let key = format!("{architecture}.attention.head_count_kv");
        assert!(refused(architecture, &key, Setting::U32(4)).contains("divisible"));
    }
    let error = refused("mistral", "mistral.embedding_length", Setting::Text("many".to_owned()));
    assert!(error.contains("cannot be \"many\": expected a whole number"), "{error}");
}

#[test]
fn a_mark_of_utf_8_before_the_settings_is_no_fault() {
    let folder = Folder::new();
    let config = folder.file("config.json", format!("\u{feff}{}", config_of("llama", &[])));
    assert!(run(["estimate", "--config", &config, "--context", "64"]).ok().contains("It fits."));
}

#[test]
fn a_folder_without_weights_is_told_of_its_settings() {
    let folder = Folder::new();
    folder.file("config.json", config_of("llama", &[]));
    let path = folder.arg("");
    let error = run(["estimate", "-m", &path, "--context", "64"]).fails(4);
    let config = folder.path("config.json");
    assert!(
        error.contains("fetch the weights too") && error.contains(&format!("--config {}", config.display())),
        "{error}"
    );
    run(["estimate", "--config", config.to_str().unwrap(), "--context", "64"]).ok();
}

#[test]
fn sums_past_every_machine_are_printed_as_such() {
    let folder = Folder::new();
    let largest = [
        ("hidden_size", json!(1 << 20)),
        ("intermediate_size", json!(1 << 26)),
        ("num_hidden_layers", json!(10_000)),
        ("num_attention_heads", json!(1 << 16)),
        ("num_key_value_heads", json!(1 << 16)),
        ("head_dim", json!(1 << 16)),
        ("vocab_size", json!(1 << 26)),
    ];
    for model_type in ["llama", "mistral"] {
        let config = folder.file("config.json", config_of(model_type, &largest));
        let text = run(["estimate", "--config", &config, "--context", "4294967295", "--memory-budget", "4PiB"]).ok();
        assert!(text.contains("over 15 EiB") && text.contains("4 PiB") && !text.contains("1844674"), "{text}");
        assert!(text.contains("It does not fit"), "{text}");
    }
}

#[test]
fn a_policy_that_leaves_nothing_is_a_usage_error_and_says_of_what() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    if run(["doctor", "--json"]).json()["memory"]["budget_bytes"].is_null() {
        println!("NOT RUN: no limit of this machine is known");
        return;
    }
    let (folder, model) = (Folder::new(), golden.model.to_str().unwrap());
    let ids = folder.ids(&[1, 2]);
    let policy = ["--memory-policy", "custom:8EiB"];
    for args in [
        &["estimate", "-m", model, "--context", "10"][..],
        &["plan", "-m", model, "--context", "10"],
        &["run", "-m", model, "--token-ids", &ids, "-n", "1"],
    ] {
        let all = || args.iter().chain(&policy);
        let error = run(all()).fails(2);
        assert!(error.contains("--memory-policy custom:8 EiB leaves nothing: "), "{error}");
        // A budget of one's own goes before any policy.
        run(all().chain(&["--memory-budget", "1GiB"])).ok();
    }
    let text = run(["doctor"].iter().chain(&policy)).ok();
    assert!(text.contains("a run would get: nothing, and would be refused"), "{text}");
}

#[test]
fn broken_files_end_with_exit_code_4_in_one_line() {
    let folder = Folder::new();
    let estimate = |name: &str, content: &[u8]| {
        let path = folder.file(name, content);
        run(["estimate", "--config", &path, "--context", "100"])
    };
    for (name, content, part) in [
        ("empty.json", &b""[..], "neither a GGUF file nor JSON"),
        ("half.json", b"{\"model_type\": \"lla", "neither a GGUF file nor JSON"),
        ("list.json", b"[1, 2]", "JSON object"),
        ("nameless.json", b"{}", "model_type"),
        ("unknown.json", b"{\"model_type\": \"mamba\"}", "`mamba` is not registered"),
        ("short.json", b"{\"model_type\": \"llama\"}", "hidden_size"),
        ("short.gguf", b"GGUF", "short.gguf"),
        ("odd.json", b"{\"model_type\": \"deepseek_v3\", \"hidden_size\": -1}", "odd.json"),
    ] {
        let error = estimate(name, content).fails(4);
        assert!(error.contains(part), "{name}: {error}");
    }
    let known = estimate("unknown.json", b"{\"model_type\": \"mamba\"}").fails(4);
    let (runs, only) = known.split_once("estimate only: ").unwrap();
    assert!(runs.contains("can be run: ") && runs.contains("llama") && only.contains("deepseek_v3"), "{known}");
    assert!(!only.contains("qwen3_moe"), "{known}");
    let huge = format!("{{\"model_type\": \"llama\", \"x\": \"{}\"}}", "y".repeat(17 << 20));
    assert!(estimate("huge.json", huge.as_bytes()).fails(4).contains("at most"));
    let missing = run(["estimate", "--config", &folder.arg("nothing.json"), "--context", "1"]).fails(2);
    assert!(missing.contains("no such file"), "{missing}");
    let missing = run(["estimate", "-m", &folder.arg("nothing.gguf"), "--context", "1"]).fails(2);
    assert!(missing.contains("no model"), "{missing}");
}

#[test]
fn nothing_is_downloaded_for_an_estimate() {
    let folder = Folder::new();
    let cache = folder.arg("cache");
    let estimate = |name: &str, more: &[&str]| {
        let args = ["estimate", "-m", name, "--context", "100", "--cache-dir", &cache];
        let mut command = crate::plimsoll(args.iter().chain(more));
        // Whoever asked a network would get no answer here, and no Python.
        command.env("HF_HUB_CACHE", folder.arg("hub")).env("HF_ENDPOINT", "http://127.0.0.1:9").env("PATH", "");
        crate::finish(command)
    };
    let error = estimate("hf:org/repo", &[]).fails(2);
    assert!(error.contains("not on this machine") && error.contains("plimsoll models fetch hf:org/repo"), "{error}");
    // 30 layers of 3 heads of 64 in two blocks; 18 of 1 head of 256.
    for (name, kv_bytes) in [("smollm2-135m", 30 * 3 * 64 * 4 * 128), ("gemma3-270m", 18 * 256 * 4 * 128)] {
        let answer = estimate(name, &["--json"]).json();
        assert!(number(&answer["kv_bytes"]) <= kv_bytes && number(&answer["kv_bytes"]) > 0, "{answer}");
        assert!(answer["notes"].to_string().contains("not fetched yet"), "{answer}");
        assert!(estimate(name, &[]).ok().contains("note: not fetched yet"));
    }
    assert!(!Path::new(&cache).exists());
}

#[test]
fn what_is_known_of_the_packaged_models_is_true() {
    let folder = Folder::new();
    let cache = std::env::var("PLIMSOLL_CACHE_DIR").ok();
    let here: Vec<&str> = cache.iter().flat_map(|cache| ["--cache-dir", cache]).collect();
    let found = run(["doctor", "--json"].iter().chain(&here)).json()["cache"]["models"].clone();
    for name in ["smollm2-135m", "gemma3-270m"] {
        if !found.as_array().unwrap().iter().any(|model| model["name"] == name) {
            println!("NOT RUN: {name} is not in the cache; plimsoll models fetch {name}");
            continue;
        }
        let estimate = |more: &[&str]| {
            let args = ["estimate", "-m", name, "--context", "700", "-n", "9", "--threads", "2", "--json"];
            run(args.iter().chain(more)).json()
        };
        let (real, known) = (estimate(&here), estimate(&["--cache-dir", &folder.arg("cache")]));
        for field in ["weights_bytes", "kv_bytes", "transient_bytes", "chunk", "trained_context"] {
            assert_eq!(known[field], real[field], "{name}: {field}");
        }
        assert!(number(&known["overhead_bytes"]) >= number(&real["overhead_bytes"]), "{name}: {known}");
    }
}

#[test]
fn questions_without_sense_are_usage_errors() {
    let folder = Folder::new();
    let config = folder.file("config.json", "{}");
    for (more, part) in [
        (&[][..], "--context"),
        (&["--context", "0"], "0"),
        (&["--context", "many"], "many"),
        (&["--context", "4294967295", "-n", "1"], "4294967296 tokens"),
        (&["--context", "100", "--chunk", "0"], "chunk"),
        (&["--context", "100", "--memory-policy", "brave"], "brave"),
        (&["--context", "100", "--device", "metal"], "metal"),
    ] {
        let error = run(["estimate", "--config", &config].iter().chain(more)).fails(2);
        assert!(error.contains(part), "{more:?}: {error}");
    }
}

#[test]
fn a_policy_leaves_more_or_less_of_the_same_machine() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let budget = |policy: &str| {
        let answer = estimate(&golden.model, 100, 0, &["--json", "--memory-policy", policy]).json();
        assert!(answer["budget_source"].as_str().is_some_and(|source| !source.is_empty()), "{answer}");
        answer["budget_bytes"].as_u64()
    };
    let found = ["safe", "balanced", "aggressive", "custom:0"].map(budget);
    // Where the machine says nothing there is no budget at all.
    assert!(found.iter().all(Option::is_none) || found.is_sorted(), "{found:?}");
}

#[test]
fn an_automatic_run_needs_no_more_than_chunks_of_64_rows() {
    // Four layers of five have a window: in chunks of 512 rows they hold eight blocks more.
    let Some(golden) = golden("tiny-gemma3") else { return };
    let folder = Folder::new();
    let tokens = 2_000;
    let ids: Vec<u32> = golden.ids.iter().copied().cycle().take(tokens).collect();
    let smallest = |more: &[&str]| {
        let answer = estimate(&golden.model, tokens, 1, &[&["--json", "--threads", "1"], more].concat()).json();
        number(&answer["smallest_budget_bytes"])
    };
    let budget_bytes = smallest(&[]);
    assert_eq!(budget_bytes, smallest(&["--chunk", "64"]));
    assert!(smallest(&["--chunk", "512"]) > budget_bytes);
    let run = |budget: &str| {
        let more = ["--json", "-n", "1", "--threads", "1", "--memory-budget", budget];
        run_ids(&folder, &golden.model, &ids, &more).json()
    };
    let (least, most) = (run(&budget_bytes.to_string()), run("1GiB"));
    assert_eq!(least["first_logits_sha256"], most["first_logits_sha256"]);
    assert!(number(&least["memory"]["planned_peak_bytes"]) <= budget_bytes, "{}", least["memory"]);
    assert!(number(&least["memory"]["kv_bytes"]) <= number(&most["memory"]["kv_bytes"]));
}

#[test]
fn the_text_says_what_would_help_and_how_sure_it_is() {
    let folder = Folder::new();
    let (model, _) = wide(&folder, 1);
    let model = Path::new(&model);
    let least = |context, max_tokens, more: &[&str]| {
        number(
            &estimate(model, context, max_tokens, &[&["--json", "--threads", "1"], more].concat()).json()["smallest_budget_bytes"],
        )
    };
    let text = |context, max_tokens, budget_bytes: u64, more: &[&str]| {
        let budget = budget_bytes.to_string();
        let settings = ["--threads", "1", "--memory-budget", &budget];
        estimate(model, context, max_tokens, &[&settings[..], more].concat()).ok()
    };
    let bytes = least(1_000, 0, &[]);
    let near = text(1_000, 0, bytes - MIB / 2, &[]);
    assert!(near.contains("It may not fit: within 2 MiB of what is there. The longest prompt"), "{near}");
    assert!(near.contains(" bytes, ") && near.contains(" above the budget"), "{near}");
    assert!(text(1_000, 0, bytes - 4 * MIB, &[]).contains("It does not fit. The longest prompt"));
    let roomy = text(1_000, 0, 4096 * MIB, &[]);
    assert!(roomy.contains("It fits.") && !roomy.contains("above the budget"), "{roomy}");
    for (more, part) in [
        (&[][..], "with chunks of 64 rows"),
        (&["--chunk", "512"], "with chunks of 512 rows"),
        (&["--chunk", "1"], "with chunks of 1 row\n"),
    ] {
        let told = text(1_000, 0, 4096 * MIB, more);
        assert!(told.contains(part), "{part}: {told}");
    }
    // A block of keys and values is 64 tokens, and the last of an answer has none.
    let told = text(64, 1_000, least(64, 128, &["--kv-dtype", "f32"]) + 2 * MIB, &["--kv-dtype", "f32"]);
    assert!(told.contains("With -n 129 or less this prompt fits."), "{told}");
}

#[test]
fn a_budget_above_the_machine_is_noted_and_promised_by_nobody() {
    let Some(golden) = golden("tiny-one-row") else { return };
    let budget = ["--memory-budget", "1PiB"];
    let answer = estimate(&golden.model, 3, 1, &[&["--json"][..], &budget].concat()).json();
    let notes = answer["notes"].to_string();
    assert!(notes.contains("--memory-budget 1 PiB is more than this machine has, "), "{notes}");
    let report = run(["doctor"].iter().chain(&budget)).ok();
    let line = report.lines().find(|line| line.starts_with("a run would get: ")).unwrap();
    assert!(!line.contains("get: 1 PiB") && line.contains("less than --memory-budget 1 PiB"), "{line}");
    let below = estimate(&golden.model, 3, 1, &["--json", "--memory-budget", "64MiB"]).json();
    assert!(!below["notes"].to_string().contains("--memory-budget"), "{below}");
}

#[test]
fn settings_given_as_a_model_are_answered_with_how_to_give_them() {
    let folder = Folder::new();
    let config = folder.file("config.json", config_of("llama", &[]));
    let error = run(["estimate", "-m", &config, "--context", "64"]).fails(2);
    assert!(error.contains(&format!("hint: by its settings alone: --config {config}")), "{error}");
    let error = run(["run", "-m", &config, "--prompt", "x"]).fails(2);
    let parent = Path::new(&config).parent().unwrap().display();
    assert!(error.contains(&format!("with its weights: -m {parent}")), "{error}");
}
