//! The case of 245,327 tokens, as `cargo run --example replay` prints it.

#[path = "../../examples/replay/simulation.rs"]
mod simulation;

use simulation::{CAP_BYTES, GIB, PROMPT_TOKENS, RELEASES, Rule};

#[test]
fn without_the_charge_a_long_prompt_passes_the_cap_and_is_ended() {
    let outcome = simulation::run(Rule::GrowthOnly);
    assert!(outcome.tokens > PROMPT_TOKENS / 4 && outcome.tokens < PROMPT_TOKENS, "{outcome:?}");
    assert!(outcome.peak_bytes > CAP_BYTES && outcome.hard_transitions > 0, "{outcome:?}");
    // Each chunk after a release grew by what was released, over what was predicted.
    assert!(outcome.worst_overrun_bytes > 6 * GIB, "{outcome:?}");
}

#[test]
fn with_the_charge_all_tokens_complete_without_hard_pressure() {
    let outcome = simulation::run(Rule::ReclaimCharge);
    assert_eq!((outcome.tokens, outcome.hard_transitions, outcome.refusals), (PROMPT_TOKENS, 0, 0), "{outcome:?}");
    assert_eq!((outcome.releases, outcome.worst_overrun_bytes), (RELEASES, 0), "{outcome:?}");
    assert!(outcome.reductions > 0 && outcome.chunks < PROMPT_TOKENS / 512, "{outcome:?}");
}

#[test]
fn published_predictions_come_out_again() {
    for case in simulation::cases() {
        assert!(case.with_charge >= case.observed, "{}: {case:?}", case.name);
    }
    let figures = simulation::cases().map(|case| (case.without_charge, case.with_charge));
    assert_eq!(figures, [(1118, 1752), (1183, 1183), (1058, 3191)]);
}
