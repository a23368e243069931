//! Images in the form that both dialects send.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clawk_core::ports::Image;

/// Returns the image's bytes in base64; `None` if the image has no bytes.
pub(crate) fn picture_base64(image: &Image) -> Option<String> {
    image.data.as_ref().map(|data| STANDARD.encode(data))
}
