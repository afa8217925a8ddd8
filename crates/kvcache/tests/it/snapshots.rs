//! Recurrent states of the past.

use super::{counted, hybrid, hybrid_sequence, pass};
use plimsoll_kvcache::{Error, KvSpec, Snapshots};
use std::num::NonZeroUsize;

fn spec(every: usize, keep: usize) -> KvSpec {
    let [every_blocks, keep] = [every, keep].map(|count| NonZeroUsize::new(count).unwrap());
    hybrid().with_snapshots(Some(Snapshots { every_blocks, keep }))
}

#[test]
fn snapshots_are_priced_and_kept_where_passes_end_at_borders() {
    let spec = spec(2, 3);
    let without = |tokens| hybrid().bytes(tokens);
    // Two layers of one and two cache lines.
    assert_eq!(spec.snapshot_bytes(), 192);
    assert_eq!([127, 128, 400, 10_000].map(|t| spec.bytes(t) - without(t)), [0, 192, 3 * 192, 3 * 192]);
    let mut sequence = hybrid_sequence(&spec, 1000);
    for (rows, snapshots) in [(64, 0), (64, 1), (128, 2), (130, 2), (126, 3), (128, 3), (1, 3)] {
        let start = sequence.len();
        pass(&mut sequence, start, rows).unwrap();
        sequence.commit();
        assert_eq!(sequence.bytes() - without(start + rows), snapshots * 192, "after {}", start + rows);
    }
    // 640 is the newest, 512 and 256 are older, 128 had to go; 384 was run over.
    let refused = |tokens, from| Err(Error::NeedsPrefill { layer: 0, tokens, len_tokens: 641, from });
    assert_eq!(sequence.truncate(600), refused(600, 512));
    assert_eq!(sequence.truncate(384), refused(384, 256));
    assert_eq!(sequence.truncate(128), refused(128, 0));
    sequence.truncate(512).unwrap();
    assert_eq!((sequence.len(), counted(&mut sequence, 0), counted(&mut sequence, 3)), (512, 512.0, 512.0));
    sequence.truncate(512).unwrap();
    pass(&mut sequence, 512, 30).unwrap();
    sequence.commit();
    sequence.truncate(256).unwrap();
    assert_eq!((sequence.len(), counted(&mut sequence, 3)), (256, 256.0));
    sequence.truncate(0).unwrap();
    assert_eq!((sequence.len(), sequence.bytes()), (0, spec.bytes(0)));
}

#[test]
fn a_pass_that_fails_after_a_snapshot_leaves_it() {
    let mut sequence = hybrid_sequence(&spec(1, 2), 300);
    pass(&mut sequence, 0, 64).unwrap();
    sequence.commit();
    pass(&mut sequence, 64, 10).unwrap();
    sequence.truncate(64).unwrap();
    pass(&mut sequence, 64, 64).unwrap();
    sequence.commit();
    sequence.truncate(64).unwrap();
    assert_eq!((sequence.len(), counted(&mut sequence, 0)), (64, 64.0));
}
