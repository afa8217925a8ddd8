//! Sequences that share blocks: what each sees, and who pays.

use super::{append, hybrid, mean_of_values, number, pass, spec};
use plimsoll_kvcache::{BlockTable, Error, KvSpec, Sequence};
use plimsoll_memguard::{Budget, Kind, Ledger};

const MAX_TOKENS: usize = 400;

fn first(ledger: &Ledger, spec: &KvSpec, tokens: usize) -> Sequence {
    let reservation = ledger.reserve(Kind::Kv, spec.bytes(MAX_TOKENS)).unwrap();
    let mut sequence = Sequence::new(spec, MAX_TOKENS, reservation).unwrap();
    grow(&mut sequence, tokens, 0);
    sequence
}

fn grow(sequence: &mut Sequence, tokens: usize, version: usize) {
    let start = sequence.len();
    for layer in 0..2 {
        append(sequence, layer, start, tokens, version).unwrap();
    }
    sequence.commit();
}

fn fork(sequence: &Sequence) -> Sequence {
    let reservation = sequence.ledger().reserve(Kind::Kv, sequence.fork_bytes(MAX_TOKENS)).unwrap();
    sequence.fork(MAX_TOKENS, reservation).unwrap()
}

/// The mean over layer 0 of `versions`, token by token.
fn expect(sequence: &Sequence, versions: &[usize]) {
    let mean = mean_of_values(sequence, 0, versions.len(), &mut BlockTable::new());
    for (i, mean) in mean.into_iter().enumerate() {
        let sum: f32 = versions.iter().enumerate().map(|(token, &v)| number(0, token, v, i)).sum();
        let want = sum / versions.len() as f32;
        assert!((mean - want).abs() < 1e-2, "{mean} is not {want}");
    }
}

#[test]
fn forks_go_their_own_ways_from_the_middle_of_a_block() {
    let (ledger, spec) = (Ledger::new(Budget::Unlimited), spec());
    let mut parent = first(&ledger, &spec, 150);
    let (mut one, mut two) = (fork(&parent), fork(&parent));
    grow(&mut one, 60, 1);
    grow(&mut parent, 30, 2);
    grow(&mut two, 5, 3);
    let versions = |rows, version| [vec![0; 150], vec![version; rows]].concat();
    expect(&one, &versions(60, 1));
    expect(&parent, &versions(30, 2));
    expect(&two, &versions(5, 3));
    drop(parent);
    grow(&mut two, 100, 3);
    expect(&one, &versions(60, 1));
    expect(&two, &versions(105, 3));
    drop((one, two));
    assert_eq!(ledger.usage().reserved_bytes(), 0);
}

#[test]
fn whole_blocks_are_paid_once_and_stay_paid_when_their_first_owner_goes() {
    let spec = spec();
    let [full, window] = [2560, 2048];
    let ledger = Ledger::new(Budget::Bytes(2 * spec.bytes(MAX_TOKENS) - 2 * full));
    let parent = first(&ledger, &spec, 150);
    assert_eq!(parent.fork_bytes(MAX_TOKENS), spec.bytes(MAX_TOKENS) - 2 * full, "two whole blocks of the full layer");
    let mut child = fork(&parent);
    assert_eq!(ledger.usage().free_bytes(), Some(0));
    assert_eq!(child.bytes(), 3 * full + window, "as its parent");
    drop(parent);
    assert_eq!(ledger.usage().reserved_bytes(), spec.bytes(MAX_TOKENS), "the child's whole length is paid for");
    grow(&mut child, 250, 1);
    assert_eq!(child.reserved_bytes(), ledger.usage().kv_bytes);
    drop(child);
    assert_eq!(ledger.usage().reserved_bytes(), 0);
}

#[test]
fn either_owner_may_fill_its_length_within_what_both_reserved() {
    // The ledger has no byte beyond the two reservations: no copy may ask for one.
    for parent_first in [true, false] {
        let spec = spec();
        let ledger = Ledger::new(Budget::Bytes(2 * spec.bytes(MAX_TOKENS) - 2 * 2560));
        let mut parent = first(&ledger, &spec, 130);
        let mut child = fork(&parent);
        let mut both = [&mut parent, &mut child];
        if !parent_first {
            both.reverse();
        }
        for sequence in both {
            while sequence.len() < MAX_TOKENS {
                let rows = (MAX_TOKENS - sequence.len()).min(37);
                grow(sequence, rows, 1);
            }
        }
        assert_eq!(ledger.usage().free_bytes(), Some(0));
        drop((parent, child));
        assert_eq!(ledger.usage().reserved_bytes(), 0);
    }
}

#[test]
fn blocks_cut_off_while_a_fork_holds_them_are_asked_for_again() {
    let spec = KvSpec::new(vec![super::plain_model::FULL.into()]);
    let ledger = Ledger::new(Budget::Bytes(2 * spec.bytes(MAX_TOKENS) - 3 * 2560));
    let reservation = ledger.reserve(Kind::Kv, spec.bytes(MAX_TOKENS)).unwrap();
    let mut parent = Sequence::new(&spec, MAX_TOKENS, reservation).unwrap();
    append(&mut parent, 0, 0, 192, 0).unwrap();
    parent.commit();
    let child = fork(&parent);
    parent.truncate(70).unwrap();
    // Seven blocks in all, of which one is still shared: five new ones and a copy, and four are left of the reservation.
    let error = append(&mut parent, 0, 70, 330, 1).unwrap_err();
    assert_eq!((error, parent.len()), (Error::Unpaid { missing_bytes: 2560 }, 70));
    expect(&child, &[0; 192]);
    append(&mut parent, 0, 70, 170, 1).unwrap();
    drop(child);
    append(&mut parent, 0, 240, 160, 1).unwrap();
    expect(&parent, &[vec![0; 70], vec![1; 330]].concat());
    drop(parent);
    assert_eq!(ledger.usage().reserved_bytes(), 0);
}

#[test]
fn a_fork_needs_a_finished_pass_enough_bytes_and_the_same_ledger() {
    let (ledger, spec) = (Ledger::new(Budget::Unlimited), spec());
    let mut parent = first(&ledger, &spec, 100);
    let few = ledger.reserve(Kind::Kv, parent.fork_bytes(MAX_TOKENS) - 1).unwrap();
    assert!(matches!(parent.fork(MAX_TOKENS, few), Err(Error::Reservation { .. })));
    let other = Ledger::new(Budget::Unlimited).reserve(Kind::Kv, 1 << 30).unwrap();
    assert_eq!(parent.fork(MAX_TOKENS, other).err(), Some(Error::OtherLedger));
    let short = ledger.reserve(Kind::Kv, 1 << 30).unwrap();
    let capacity = Error::Capacity { layer: 0, end_tokens: 100, max_tokens: 99 };
    assert_eq!(parent.fork(99, short).err(), Some(capacity));
    append(&mut parent, 0, 100, 1, 0).unwrap();
    let some = ledger.reserve(Kind::Kv, 1 << 30).unwrap();
    let inside = Error::Uncommitted { layer: 0, layer_tokens: 101, len_tokens: 100 };
    assert_eq!(parent.fork(MAX_TOKENS, some).err(), Some(inside));
    drop(parent);
    assert_eq!(ledger.usage().reserved_bytes(), 0);
}

#[test]
fn recurrent_states_of_a_fork_are_its_own() {
    let (ledger, spec) = (Ledger::new(Budget::Unlimited), hybrid());
    let mut parent = Sequence::new(&spec, 100, ledger.reserve(Kind::Kv, spec.bytes(100)).unwrap()).unwrap();
    pass(&mut parent, 0, 70).unwrap();
    parent.commit();
    let mut child = parent.fork(100, ledger.reserve(Kind::Kv, parent.fork_bytes(100)).unwrap()).unwrap();
    pass(&mut child, 70, 20).unwrap();
    child.commit();
    assert_eq!((super::counted(&mut parent, 0), super::counted(&mut child, 0)), (70.0, 90.0));
    assert_eq!((parent.len(), child.len(), parent.bytes(), child.bytes()), (70, 90, spec.bytes(70), spec.bytes(90)));
    drop((parent, child));
    assert_eq!(ledger.usage().reserved_bytes(), 0);
}
