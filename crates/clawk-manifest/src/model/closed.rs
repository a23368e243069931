//! Closed sets of words as enums: one declaration gives the type, its names on the wire and the JSON Schema's `enum`.

/// Declares an enum whose variants are words of the specification.
///
/// Gives `ALL`, `WORDS` (same order), `as_str`, `parse`, `Display`, `Serialize` and `Deserialize`.
macro_rules! closed_set {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$vmeta:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$vmeta])* #[doc = concat!("`", $word, "`")] #[serde(rename = $word)] $variant),+
        }

        impl $name {
            /// Every member, in the order of the specification.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
            /// The members' words, in the same order as [`Self::ALL`].
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word used in manifests and on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// The member with exactly this word.
            #[must_use]
            pub fn parse(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

pub(crate) use closed_set;
