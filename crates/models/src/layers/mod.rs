//! What more than one architecture needs: rope scaling and the common blocks of a decoder.

pub(crate) mod attention;
pub(crate) mod decoder;
pub(crate) mod delta_net;
pub(crate) mod mlp;
pub(crate) mod moe;
pub(crate) mod rope;
pub(crate) mod windows;
