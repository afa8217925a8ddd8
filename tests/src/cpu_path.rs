//! Every way in which this machine's CPU can run a pass.

use plimsoll_attention::{Isa, RouteKind};
use plimsoll_models::CpuSettings;

/// Settings that must change no bit.
#[derive(Debug, Clone)]
pub struct CpuPath {
    /// What is forced, for a table.
    pub name: String,
    /// The settings.
    pub settings: CpuSettings,
    /// Whether plain code or the definition of attention is in it: too slow for trained models and long prompts.
    pub slow: bool,
}

impl CpuPath {
    /// Every instruction set of this CPU forced on products and attention together, as `PLIMSOLL_CPU` does.
    #[must_use]
    pub fn forced(detected: CpuSettings) -> Vec<Self> {
        let path = |isa: plimsoll_linear::Isa| {
            let slow = isa == plimsoll_linear::Isa::Scalar;
            Self { name: isa.name().to_owned(), settings: detected.with_isa(isa), slow }
        };
        plimsoll_linear::Isa::available().map(path).collect()
    }

    /// [`CpuPath::forced`]; each instruction set in the products alone, and in attention alone by each of its routes; and the slowest of all.
    #[must_use]
    pub fn all(detected: CpuSettings) -> Vec<Self> {
        let mut paths = Self::forced(detected);
        for linear_isa in plimsoll_linear::Isa::available() {
            let settings = CpuSettings { linear_isa, ..detected };
            let slow = linear_isa == plimsoll_linear::Isa::Scalar;
            paths.push(Self { name: format!("{} in products", linear_isa.name()), settings, slow });
        }
        for attention_isa in Isa::available() {
            for (route, shown) in
                [(None, ""), (Some(RouteKind::Tiled), ", tiled"), (Some(RouteKind::Reference), ", by definition")]
            {
                let settings = CpuSettings { attention_isa, attention_route: route, ..detected };
                let slow = attention_isa == Isa::Scalar || route == Some(RouteKind::Reference);
                paths.push(Self { name: format!("{} in attention{shown}", attention_isa.name()), settings, slow });
            }
        }
        let settings = CpuSettings {
            linear_isa: plimsoll_linear::Isa::Scalar,
            attention_isa: Isa::Scalar,
            attention_route: Some(RouteKind::Reference),
            ..detected
        };
        paths.push(Self { name: "scalar, attention by definition".to_owned(), settings, slow: true });
        paths
    }
}
