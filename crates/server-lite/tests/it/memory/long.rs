//! Long prompts: nothing grows but keys and values, and the tracker sees every chunk coming.

use super::watch::{models, program, watch};
use crate::{Folder, golden};
use serde_json::Value;

const MIB: i64 = 1 << 20;

fn integer(value: &Value) -> i64 {
    value.as_i64().unwrap_or_else(|| panic!("{value} is no integer"))
}

#[test]
fn a_long_prompt_grows_by_its_keys_and_values_alone() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let tokens = if models().is_empty() { 12_000 } else { 100_000 };
    let folder = Folder::new();
    let ids: Vec<u32> = golden.ids.iter().copied().cycle().take(tokens).collect();
    let (ids, model) = (folder.ids(&ids), golden.model.to_str().unwrap());
    let watched = watch(program(&["run", "-m", model, "--token-ids", &ids, "-n", "1", "--json"]));
    let json = watched.ran.json();
    let chunks = json["chunks"].as_array().unwrap();
    assert!(chunks.len() > 20, "{}", chunks.len());
    // The last one may be short.
    let whole = &chunks[..chunks.len() - 1];
    assert!(whole.iter().all(|chunk| chunk["rows"] == 512));
    let arenas: Vec<i64> = whole.iter().map(|chunk| integer(&chunk["measured_bytes"])).collect();
    assert!(arenas.iter().all(|&bytes| bytes == arenas[0]), "live temporaries grow: {arenas:?}");

    let beyond = |chunk: &Value| integer(&chunk["footprint_bytes"]) - integer(&chunk["kv_bytes"]);
    let (tenth, last) = (beyond(&chunks[9]), beyond(&whole[whole.len() - 1]));
    println!("{tokens} tokens: beyond keys and values {tenth} bytes after chunk 10, {last} at the end");
    assert!((last - tenth).abs() <= 4 * MIB, "{tenth} bytes after chunk 10, {last} at the end");
    expect_foreseen(chunks);
}

/// No chunk grew the process by more than was reserved for it.
#[track_caller]
pub(super) fn expect_foreseen(chunks: &[Value]) {
    for chunk in chunks {
        let (predicted, growth) = (integer(&chunk["predicted_bytes"]), integer(&chunk["growth_bytes"]));
        assert!(predicted >= growth, "grew by more than was predicted: {chunk}");
        let parts = ["planned_bytes", "charged_bytes", "slack_bytes"].map(|name| integer(&chunk[name]));
        assert_eq!(predicted, parts.iter().sum::<i64>(), "{chunk}");
        assert!(integer(&chunk["measured_bytes"]) <= integer(&chunk["planned_bytes"]), "{chunk}");
    }
}
