//! `--logits-out` and the bits of a row.

use crate::{Folder, Golden, golden, run_ids};
use safetensors::{Dtype, SafeTensors};
use std::fs;

/// The bytes of `--logits-out`, and the sum in the JSON object.
fn logits(golden: &Golden, rows: &str, more: &[&str]) -> (Vec<u8>, String) {
    let folder = Folder::new();
    let out = folder.arg("out.safetensors");
    let args = ["--json", "-n", "3", "--logits-out", &out, "--logit-rows", rows];
    let args: Vec<&str> = args.iter().chain(more).copied().collect();
    let json = run_ids(&folder, &golden.model, &golden.ids, &args).json();
    let files: Vec<_> = fs::read_dir(folder.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(files.len(), 2, "ids and logits, no temporary file: {files:?}");
    (fs::read(out).unwrap(), json["first_logits_sha256"].as_str().unwrap().to_owned())
}

#[test]
fn the_file_holds_ids_and_the_rows_asked_for() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let (all, sum) = logits(&golden, "all", &[]);
    let (last, same_sum) = logits(&golden, "last", &[]);
    assert_eq!(sum, same_sum);
    let read = |bytes: &[u8], rows: usize| {
        let tensors = SafeTensors::deserialize(bytes).unwrap();
        let (ids, logits) = (tensors.tensor("ids").unwrap(), tensors.tensor("logits").unwrap());
        assert_eq!((ids.dtype(), ids.shape()), (Dtype::I64, &[65][..]));
        let ids: Vec<u32> =
            ids.data().chunks_exact(8).map(|id| u32::from_le_bytes(id[..4].try_into().unwrap())).collect();
        assert_eq!(ids, golden.ids);
        assert_eq!((logits.dtype(), logits.shape()[0]), (Dtype::F32, rows));
        let width = 4 * logits.shape()[1];
        logits.data()[logits.data().len() - width..].to_vec()
    };
    assert_eq!(read(&all, 65), read(&last, 1), "the last row of all is the last row");
}

#[test]
fn a_row_has_the_same_bits_at_every_chunk_size_and_thread_count() {
    for name in ["tiny-rope-linear", "tiny-q4_1", "tiny-bf16"] {
        let Some(golden) = golden(name) else { return };
        for kv_dtype in ["f32", "f16", "bf16"] {
            let kv = ["--kv-dtype", kv_dtype];
            let want = logits(&golden, "all", &kv);
            for chunk in ["1", "7", "64", "auto"] {
                for threads in ["1", "2"] {
                    let more = [&kv[..], &["--chunk", chunk, "--threads", threads]].concat();
                    assert!(
                        logits(&golden, "all", &more) == want,
                        "{name}, {kv_dtype}, chunk {chunk}, threads {threads}"
                    );
                }
            }
            let tight = [&kv[..], &["--chunk", "64", "--memory-budget", "64MiB"]].concat();
            assert!(logits(&golden, "all", &tight) == want, "{name}, {kv_dtype}, with a budget");
        }
    }
}

#[test]
fn the_kv_type_is_used() {
    let Some(golden) = golden("tiny-gqa-6x2") else { return };
    let kv_bytes = |kind: &str| {
        let json =
            run_ids(&Folder::new(), &golden.model, &golden.ids, &["--json", "-n", "1", "--kv-dtype", kind]).json();
        (json["memory"]["kv_bytes"].as_u64().unwrap(), json["first_logits_sha256"].as_str().unwrap().to_owned())
    };
    let (f32, f16, bf16) = (kv_bytes("f32"), kv_bytes("f16"), kv_bytes("bf16"));
    assert_eq!((f32.0, f16.0), (2 * f16.0, bf16.0));
    assert!(f32.1 != f16.1 && f16.1 != bf16.1, "another type gives other bits");
}
