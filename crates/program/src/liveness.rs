//! Last uses, computed once: release lists for the executor and a schedule for the planner.
//!
//! All of it works on roots: using a view is using the slot whose memory it is. A slot that a nested chain names but
//! does not own counts as used at the step that runs the chain, in the chain that owns the slot: the owner can release
//! it there, the nested chain cannot. What a scan body reads only after an iteration (`next`, the rows of outputs)
//! lives to the end of the scan. Follows ExecuTorch's MLX backend (pull requests 22932 and 23109).

use crate::program::{Chain, ChainId};
use crate::{Access, Slot, SlotInfo, SlotKind, StepId};

/// What happens to the arena, in the order of a pass. Both branches of an `if` appear, one after the other, so their
/// own slots may share memory; a scan body appears once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The root gets its memory.
    Place(Slot),
    /// The step starts, and with it the step's scratch memory.
    Enter(StepId),
    /// The step's scratch memory is given back.
    Leave(StepId),
    /// The root gives its memory back.
    Free(Slot),
}

/// The events of a pass, and for each arena root the range of events it lives in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Schedule {
    pub(crate) events: Vec<Event>,
    /// By slot: index of the `Place` event and of the `Free` event (or the number of events, if it is never freed);
    /// `None` for slots that have no memory of their own in the arena.
    pub(crate) lives: Vec<Option<(u32, u32)>>,
}

/// First and last use of a root, as positions in the chain that owns it.
#[derive(Debug, Clone, Copy, Default)]
struct Use {
    /// Position of the first step that names it.
    first: Option<usize>,
    /// Position of the last step that names it.
    last: Option<usize>,
    /// Written before the first step of each run of the owning chain.
    at_start: bool,
    /// Read after the last step of each run of the owning chain.
    at_end: bool,
}

/// Fills the release lists of `chains` and returns the schedule. Views must point at their roots.
pub(crate) fn analyze(slots: &[SlotInfo], owners: &[ChainId], chains: &mut [Chain]) -> Schedule {
    let uses = collect_uses(slots, owners, chains);
    let mut places: Vec<Placement> = chains.iter().map(|chain| Placement::new(chain.steps.len())).collect();
    let mut inputs = Vec::new();
    for (index, info) in slots.iter().enumerate() {
        let (slot, used, owner) = (Slot::from_index(index), uses[index], owners[index]);
        match info.kind {
            SlotKind::Constant | SlotKind::State | SlotKind::View { .. } => {}
            SlotKind::Input => inputs.push(slot),
            SlotKind::Output => {
                if let Some(first) = used.first {
                    places[owner.index()].placed[first].push(slot);
                }
            }
            SlotKind::Temporary => schedule_temporary(slot, used, owner, chains, &mut places),
        }
    }
    for (chain, placement) in chains.iter_mut().zip(&places) {
        chain.release_starts.push(0);
        for released in &placement.released {
            chain.released.extend_from_slice(released);
            let end = u32::try_from(chain.released.len()).expect("a chain releases fewer than 2^32 slots");
            chain.release_starts.push(end);
        }
    }
    let mut events: Vec<Event> = inputs.into_iter().map(Event::Place).collect();
    append_chain(ChainId::MAIN, chains, &places, &mut events);
    let lives = lives(slots.len(), &events);
    Schedule { events, lives }
}

/// What one chain places and releases.
#[derive(Debug)]
struct Placement {
    /// Slots written before the first step: placed with the step that runs the chain.
    at_start: Vec<Slot>,
    /// Per step, slots that appear with it.
    placed: Vec<Vec<Slot>>,
    /// Per step, slots that end with it.
    released: Vec<Vec<Slot>>,
}

impl Placement {
    fn new(steps: usize) -> Self {
        Self { at_start: Vec::new(), placed: vec![Vec::new(); steps], released: vec![Vec::new(); steps] }
    }
}

fn schedule_temporary(slot: Slot, used: Use, owner: ChainId, chains: &[Chain], places: &mut [Placement]) {
    match (used.at_start, used.first) {
        (true, _) => places[owner.index()].at_start.push(slot),
        (false, Some(first)) => places[owner.index()].placed[first].push(slot),
        // Named by no step: it never gets memory.
        (false, None) => return,
    }
    match (used.at_end, used.last, chains[owner.index()].parent) {
        (false, Some(last), _) => places[owner.index()].released[last].push(slot),
        // Read after the last step of the body, or a row the body does not read: ends with the scan.
        (_, _, Some((parent, step))) => places[parent.index()].released[step].push(slot),
        (_, _, None) => unreachable!("only a nested chain has slots that are used before or after its steps"),
    }
}

fn collect_uses(slots: &[SlotInfo], owners: &[ChainId], chains: &[Chain]) -> Vec<Use> {
    let mut uses = vec![Use::default(); slots.len()];
    for (index, chain) in chains.iter().enumerate() {
        for (position, step) in chain.steps.iter().enumerate() {
            step.op.visit(|slot, access| {
                let root = match slots[slot.index()].kind {
                    SlotKind::View { of } => of,
                    _ => slot,
                };
                let used = &mut uses[root.index()];
                let owner = owners[root.index()];
                let by_body = step.op.chains().any(|body| body == owner);
                match access {
                    Access::BodyStart if by_body => used.at_start = true,
                    Access::BodyEnd if by_body => used.at_end = true,
                    Access::Read | Access::Write | Access::Update | Access::BodyStart | Access::BodyEnd => {
                        let position = climb(chains, owner, ChainId::from_index(index), position);
                        used.first = Some(used.first.map_or(position, |first| first.min(position)));
                        used.last = Some(used.last.map_or(position, |last| last.max(position)));
                    }
                }
            });
        }
    }
    uses
}

/// The step of `owner` during which step `position` of `chain` runs.
fn climb(chains: &[Chain], owner: ChainId, mut chain: ChainId, mut position: usize) -> usize {
    while chain != owner {
        (chain, position) = chains[chain.index()].parent.expect("a slot is named only inside the chain that owns it");
    }
    position
}

fn append_chain(chain: ChainId, chains: &[Chain], places: &[Placement], events: &mut Vec<Event>) {
    let placement = &places[chain.index()];
    for (position, step) in chains[chain.index()].steps.iter().enumerate() {
        events.extend(placement.placed[position].iter().copied().map(Event::Place));
        for nested in step.op.chains() {
            events.extend(places[nested.index()].at_start.iter().copied().map(Event::Place));
        }
        events.push(Event::Enter(step.id));
        for nested in step.op.chains() {
            append_chain(nested, chains, places, events);
        }
        events.push(Event::Leave(step.id));
        events.extend(placement.released[position].iter().copied().map(Event::Free));
    }
}

fn lives(slots: usize, events: &[Event]) -> Vec<Option<(u32, u32)>> {
    let number = |index: usize| u32::try_from(index).expect("a program has fewer than 2^32 events");
    let mut lives = vec![None; slots];
    for (index, event) in events.iter().enumerate() {
        match *event {
            Event::Place(slot) => lives[slot.index()] = Some((number(index), number(events.len()))),
            Event::Free(slot) => {
                if let Some((_, end)) = &mut lives[slot.index()] {
                    *end = number(index);
                }
            }
            Event::Enter(_) | Event::Leave(_) => {}
        }
    }
    lives
}
