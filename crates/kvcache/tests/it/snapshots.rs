//! Recurrent states of the past.

use super::{counted, hybrid, hybrid_sequence, pass};
use plimsoll_kvcache::{Error, KvSpec, Snapshots};
use std::num::NonZeroUsize;

fn spec(every: usize, keep: usize) -> KvSpec {
    let [every_blocks, keep] = [every, keep].map(|count| NonZeroUsize::new(count).unwrap());
    hybrid().with_snapshots(Some(Snapshots { every_blocks, keep }))
}

#[test]
fn snapshots_are_priced_and_kept_at_borders_inside_of_passes_and_at_their_ends() {
    let spec = spec(2, 3);
    let without = |tokens| hybrid().bytes(tokens);
    // Two layers of one and two cache lines.
    assert_eq!(spec.snapshot_bytes(), 192);
    assert_eq!([127, 128, 400, 10_000].map(|t| spec.bytes(t) - without(t)), [0, 192, 3 * 192, 3 * 192]);
    let mut sequence = hybrid_sequence(&spec, 1000);
    for (rows, snapshots) in [(64, 0), (64, 1), (128, 2), (130, 3), (126, 3), (128, 3), (1, 3)] {
        let start = sequence.len();
        pass(&mut sequence, start, rows).unwrap();
        sequence.commit();
        assert_eq!(sequence.bytes() - without(start + rows), snapshots * 192, "after {}", start + rows);
    }
    // 640 is the newest, 512 and 384 are older, the others had to go; a pass ran over 384.
    let refused = |tokens, from| Err(Error::NeedsPrefill { layer: 0, tokens, len_tokens: 641, from });
    assert_eq!(sequence.truncate(600), refused(600, 512));
    assert_eq!(sequence.truncate(500), refused(500, 384));
    assert_eq!(sequence.truncate(256), refused(256, 0));
    sequence.truncate(512).unwrap();
    assert_eq!((sequence.len(), counted(&mut sequence, 0), counted(&mut sequence, 3)), (512, 512.0, 512.0));
    sequence.truncate(512).unwrap();
    pass(&mut sequence, 512, 30).unwrap();
    sequence.commit();
    sequence.truncate(384).unwrap();
    assert_eq!((sequence.len(), counted(&mut sequence, 3)), (384, 384.0));
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

#[test]
fn every_cut_of_a_prompt_leaves_the_same_snapshots_at_the_same_price() {
    for (every, keep) in [(1, 12), (1, 3), (2, 2), (3, 1), (20, 1)] {
        let spec = spec(every, keep);
        for rows in [1, 7, 64, 100, 512, 700] {
            let mut sequence = hybrid_sequence(&spec, 700);
            while sequence.len() < 700 {
                let start = sequence.len();
                pass(&mut sequence, start, rows.min(700 - start)).unwrap();
                assert!(sequence.bytes() <= spec.bytes(700), "inside of a pass of {rows}");
                sequence.commit();
                assert_eq!(
                    sequence.bytes(),
                    spec.held_bytes(sequence.len()),
                    "every {every}, {keep}, chunks of {rows}"
                );
            }
            let borders = (1..=700 / (64 * every)).rev().take(keep).map(|border| border * 64 * every);
            for border in borders {
                sequence.truncate(border).unwrap();
                let counts = [0, 3].map(|layer| counted(&mut sequence, layer));
                assert_eq!(counts, [border as f32; 2], "every {every}, {keep}, chunks of {rows}");
                sequence.truncate(border).unwrap();
            }
        }
    }
}

#[test]
fn a_pass_that_is_undone_leaves_no_snapshot_and_its_price_can_be_spent_again() {
    let mut sequence = hybrid_sequence(&spec(1, 2), 300);
    pass(&mut sequence, 0, 200).unwrap();
    sequence.truncate(0).unwrap();
    assert_eq!((sequence.bytes(), sequence.reserved_bytes()), (spec(1, 2).bytes(0), spec(1, 2).bytes(300)));
    pass(&mut sequence, 0, 250).unwrap();
    sequence.commit();
    sequence.truncate(128).unwrap();
    assert_eq!(counted(&mut sequence, 3), 128.0);
    sequence.truncate(128).unwrap();
    // What was taken after other tokens goes when a pass begins before it.
    pass(&mut sequence, 128, 100).unwrap();
    sequence.commit();
    pass(&mut sequence, 0, 100).unwrap();
    sequence.commit();
    let refused = Error::NeedsPrefill { layer: 0, tokens: 65, len_tokens: 100, from: 64 };
    assert_eq!((sequence.truncate(65), sequence.bytes()), (Err(refused), spec(1, 2).held_bytes(100)));
}

#[test]
fn a_layer_that_did_not_run_over_a_border_leaves_no_snapshot_there() {
    let mut sequence = hybrid_sequence(&spec(1, 4), 300);
    for (layer, count) in [(0, 100), (3, 70), (3, 100), (0, 90)] {
        sequence.advance(layer, 0, count, |step| step.after.fill(step.rows.end as f32)).unwrap();
    }
    sequence.commit();
    assert_eq!(sequence.truncate(64), Err(Error::NeedsPrefill { layer: 0, tokens: 64, len_tokens: 90, from: 0 }));
}

#[test]
fn a_pass_from_a_snapshot_that_has_to_go_for_its_own_runs_in_every_layer() {
    for (every, keep) in [(1, 1), (1, 2), (2, 1)] {
        let mut sequence = hybrid_sequence(&spec(every, keep), 300);
        pass(&mut sequence, 0, 200).unwrap();
        sequence.commit();
        let start = 192 / (64 * every) * 64 * every;
        pass(&mut sequence, start, 300 - start).unwrap();
        assert_eq!([0, 3].map(|layer| sequence.layer_len(layer)), [start; 2], "every {every}, {keep} kept");
        sequence.commit();
        assert_eq!([0, 3].map(|layer| counted(&mut sequence, layer)), [300.0; 2], "every {every}, {keep} kept");
        sequence.truncate(256).unwrap();
        assert_eq!([0, 3].map(|layer| counted(&mut sequence, layer)), [256.0; 2], "every {every}, {keep} kept");
    }
}
