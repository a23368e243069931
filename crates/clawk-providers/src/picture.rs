//! Pictures as both dialects send them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clawk_core::ports::Image;

/// The picture's bytes in base64; `None`: it came without them.
pub(crate) fn base64(image: &Image) -> Option<String> {
    image.data.as_ref().map(|data| STANDARD.encode(data))
}
