//! The seam through which a model states its bytes.

/// What one model costs, as pure functions of shapes: no memory reading, no state.
///
/// Implementations must be monotone: more context, rows or wanted logits never cost fewer bytes. Admission relies on it
/// (if a prompt fits, every shorter one does).
pub trait Profile {
    /// Bytes of all weights once loaded, in the layout the kernels read.
    fn weights_bytes(&self) -> u64;

    /// Bytes of the keys and values of one sequence of `context_tokens` tokens, whole KV blocks counted.
    fn kv_bytes(&self, context_tokens: usize) -> u64;

    /// Bytes that live only during `pass`: activations, workspaces, logits.
    fn transient_bytes(&self, pass: &Pass) -> u64;
}

/// The shape of one pass through the model, as far as its transient memory goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pass {
    /// Tokens in the pass.
    pub rows: usize,
    /// Absolute position of the first row.
    pub start: usize,
    /// Rows whose logits are asked for; at most `rows`.
    pub logit_rows: usize,
}
