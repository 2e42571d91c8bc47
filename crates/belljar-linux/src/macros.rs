//! Declares a set of flags as a type, without a dependency.

macro_rules! bitflags_like {
    ($(#[$doc:meta])* $name:ident: $int:ty { $($flag:ident = $value:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name($int);

        impl $name {
            $(pub const $flag: Self = Self($value as $int);)*

            pub const fn bits(self) -> $int {
                self.0
            }

            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }
    };
}
