//! Pages of a mapped file leave the resident set when their tensor is done.

use std::path::Path;

use plimsoll_models::gguf::{GgmlType, Gguf, GgufWriter};

const TENSOR_BYTES: usize = 4 << 20;

/// Resident bytes of the maps of `path` in this process, from `/proc/self/smaps`.
fn resident_bytes(path: &Path) -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = maps.lines();
    let mut bytes = 0;
    while let Some(line) = lines.next() {
        if line.ends_with(path.to_str().unwrap()) {
            let rss = lines.by_ref().find_map(|line| line.strip_prefix("Rss:")).unwrap();
            bytes += rss.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024;
        }
    }
    bytes
}

#[test]
fn a_done_tensor_leaves_the_resident_set_and_the_others_stay() {
    let data = vec![1_u8; TENSOR_BYTES];
    let mut writer = GgufWriter::new();
    for name in ["a", "b", "c"] {
        writer.tensor(name, &[TENSOR_BYTES], GgmlType::I8, &data).unwrap();
    }
    let mut out = tempfile::NamedTempFile::new().unwrap();
    writer.write_to(&mut out).unwrap();

    let file = Gguf::open(out.path()).unwrap();
    let before = resident_bytes(out.path());
    assert!(before < TENSOR_BYTES / 2, "opening read {before} bytes of tensor data");
    let sum = |name: &str| file.tensor(name).unwrap().data().iter().map(|&byte| usize::from(byte)).sum::<usize>();
    assert_eq!(["a", "b", "c"].map(sum), [TENSOR_BYTES; 3]);
    let touched = resident_bytes(out.path());
    assert!(touched >= 3 * TENSOR_BYTES, "{touched} bytes resident after reading all");

    file.advise_done(&file.tensor("b").unwrap()).unwrap();
    let after = resident_bytes(out.path());
    let given_back = touched - after;
    // Both ends may share a page with a neighbour; pages are at most 64 KiB.
    assert!(given_back.abs_diff(TENSOR_BYTES) <= 2 * 65_536, "{given_back} bytes given back");
    assert_eq!(sum("b"), TENSOR_BYTES);
}
