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
    /// How fast that is.
    pub pace: Pace,
}

/// What of a path takes the longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Kernels for vectors alone.
    Vectors,
    /// Plain code, four times as slow or so.
    PlainCode,
    /// Attention by its definition, a row and a head at a time: too slow for trained models and long prompts.
    Definition,
}

impl CpuPath {
    /// Every instruction set of this CPU forced on products and attention together, as `PLIMSOLL_CPU` does.
    #[must_use]
    pub fn forced(detected: CpuSettings) -> Vec<Self> {
        let path = |isa: plimsoll_linear::Isa| {
            let pace = Pace::of_products(isa);
            Self { name: isa.name().to_owned(), settings: detected.with_isa(isa), pace }
        };
        plimsoll_linear::Isa::available().map(path).collect()
    }

    /// [`CpuPath::forced`]; each instruction set in the products alone, and in attention alone by each of its routes; and the slowest of all.
    #[must_use]
    pub fn all(detected: CpuSettings) -> Vec<Self> {
        let mut paths = Self::forced(detected);
        for linear_isa in plimsoll_linear::Isa::available() {
            let settings = CpuSettings { linear_isa, ..detected };
            let pace = Pace::of_products(linear_isa);
            paths.push(Self { name: format!("{} in products", linear_isa.name()), settings, pace });
        }
        for attention_isa in Isa::available() {
            for (route, shown) in
                [(None, ""), (Some(RouteKind::Tiled), ", tiled"), (Some(RouteKind::Reference), ", by definition")]
            {
                let settings = CpuSettings { attention_isa, attention_route: route, ..detected };
                let pace = match (route, attention_isa) {
                    (Some(RouteKind::Reference), _) => Pace::Definition,
                    (_, Isa::Scalar) => Pace::PlainCode,
                    _ => Pace::Vectors,
                };
                paths.push(Self { name: format!("{} in attention{shown}", attention_isa.name()), settings, pace });
            }
        }
        let settings = CpuSettings {
            linear_isa: plimsoll_linear::Isa::Scalar,
            attention_isa: Isa::Scalar,
            attention_route: Some(RouteKind::Reference),
            ..detected
        };
        let name = "scalar, attention by definition".to_owned();
        paths.push(Self { name, settings, pace: Pace::Definition });
        paths
    }
}

impl Pace {
    fn of_products(isa: plimsoll_linear::Isa) -> Self {
        if isa == plimsoll_linear::Isa::Scalar { Self::PlainCode } else { Self::Vectors }
    }
}
