//! f32 values side by side, and the few operations the kernels are written in.

/// One or more f32 values. Each operation rounds once and gives the same bits on every implementation (a NaN stays some NaN).
pub(crate) trait Values: Copy {
    fn splat(x: f32) -> Self;
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn over(self, other: Self) -> Self;
    /// `self * b + c`, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;
    /// `self > other ? self : other`, so `other` where either is NaN.
    fn larger(self, other: Self) -> Self;
    /// `self < limit ? a : b`, so `b` where either is NaN.
    fn if_less(self, limit: Self, a: Self, b: Self) -> Self;
    fn magnitude(self) -> Self;
    /// The magnitude of `self` with the sign of `sign`.
    fn with_sign_of(self, sign: Self) -> Self;
    /// `2^(n - 1)` where `self` is `n + 1.5 * 2^23` and `n` is -125 to 128.
    fn half_power_of_two(self) -> Self;
    /// `self * 2^n` where `n` is an integer of -125 to 128, `shifted` is `n + 1.5 * 2^23`, and the result is no denormal.
    #[inline(always)]
    fn times_power_of_two(self, _n: Self, shifted: Self) -> Self {
        // Two factors: 2^128 itself is no f32, and results up to it are.
        self.plus(self).times(shifted.half_power_of_two())
    }
    /// `self * 2^n` where `n` is an integer of -126 to 0, `next` is `n + 1 + 1.5 * 2^23`, and the result is no denormal.
    #[inline(always)]
    fn times_small_power_of_two(self, _n: Self, next: Self) -> Self {
        self.times(next.half_power_of_two())
    }
    /// [`super::bf16_operand`] of each value.
    fn bf16_operand(self) -> Self;
    /// As `bf16_operand`, for values that are 0 or at least [`super::OPERAND_FLOOR`]; a NaN may become anything.
    fn bf16_operand_of_number(self) -> Self;
}

/// Eight values in a register or an array.
pub(crate) trait Lanes: Values {
    /// # Safety
    /// `from` is valid for reading 8 values.
    unsafe fn load(from: *const f32) -> Self;
    /// # Safety
    /// `to` is valid for writing 8 values.
    unsafe fn store(self, to: *mut f32);
    /// Even and odd elements of 8 bf16 pairs.
    ///
    /// # Safety
    /// `from` is valid for reading 8 values.
    unsafe fn load_bf16_pairs(from: *const u32) -> (Self, Self);
    /// Even and odd elements of 8 f16 pairs, not yet rounded to bf16.
    ///
    /// # Safety
    /// `from` is valid for reading 8 values.
    unsafe fn load_f16_pairs(from: *const u32) -> (Self, Self);

    /// `self * b + c` of a chain whose factors are what [`super::bf16_operand`] gives; if one of its products is too large for a finite f32,
    /// anything that leaves a sum with [`Lanes::any_not_finite`]. For lanes without an instruction for [`Values::fma`].
    #[inline(always)]
    fn fma_of_bf16(self, b: Self, c: Self) -> Self {
        self.fma(b, c)
    }
    /// Whether a value is infinite or NaN, if [`Lanes::fma_of_bf16`] is not `fma`.
    #[inline(always)]
    fn any_not_finite(self) -> bool {
        false
    }

    #[inline(always)]
    fn to_array(self) -> [f32; 8] {
        let mut out = [0.0; 8];
        // SAFETY: the array holds 8 values.
        unsafe { self.store(out.as_mut_ptr()) };
        out
    }

    #[inline(always)]
    fn from_array(values: [f32; 8]) -> Self {
        // SAFETY: the array holds 8 values.
        unsafe { Self::load(values.as_ptr()) }
    }
}

impl Values for f32 {
    #[inline(always)]
    fn splat(x: f32) -> Self {
        x
    }
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self + other
    }
    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        self - other
    }
    #[inline(always)]
    fn times(self, other: Self) -> Self {
        self * other
    }
    #[inline(always)]
    fn over(self, other: Self) -> Self {
        self / other
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        self.mul_add(b, c)
    }
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        if self > other { self } else { other }
    }
    #[inline(always)]
    fn if_less(self, limit: Self, a: Self, b: Self) -> Self {
        if self < limit { a } else { b }
    }
    #[inline(always)]
    fn magnitude(self) -> Self {
        self.abs()
    }
    #[inline(always)]
    fn with_sign_of(self, sign: Self) -> Self {
        self.copysign(sign)
    }
    #[inline(always)]
    fn half_power_of_two(self) -> Self {
        // The low bits of `self` are n + 2^22, of which the shift keeps n; 0x3f00_0000 is the bits of 2^-1.
        Self::from_bits((self.to_bits() << 23).wrapping_add(0x3f00_0000))
    }
    #[inline(always)]
    fn bf16_operand(self) -> Self {
        super::bf16_operand(self)
    }
    #[inline(always)]
    fn bf16_operand_of_number(self) -> Self {
        super::bf16_operand(self)
    }
}

macro_rules! each {
    ($($name:ident($($operand:ident),*);)*) => {$(
        #[inline(always)]
        fn $name(self, $($operand: Self),*) -> Self {
            let mut out = self;
            for i in 0..N {
                out[i] = self[i].$name($($operand[i]),*);
            }
            out
        }
    )*};
}

/// Independent values, step by step together: a processor need not look far for work while one of them waits.
impl<V: Values, const N: usize> Values for [V; N] {
    #[inline(always)]
    fn splat(x: f32) -> Self {
        [V::splat(x); N]
    }
    each! {
        plus(other);
        minus(other);
        times(other);
        over(other);
        fma(b, c);
        larger(other);
        if_less(limit, a, b);
        magnitude();
        with_sign_of(sign);
        half_power_of_two();
        times_power_of_two(n, shifted);
        times_small_power_of_two(n, next);
        bf16_operand();
        bf16_operand_of_number();
    }
}

/// The order in which 16 partial sums are combined: into 8, then those.
#[inline(always)]
pub(crate) fn combine_halves(low: [f32; 8], high: [f32; 8]) -> f32 {
    combine(std::array::from_fn(|i| low[i] + high[i]))
}

/// The order in which 8 partial sums are combined.
#[inline(always)]
pub(crate) fn combine(l: [f32; 8]) -> f32 {
    ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]))
}
