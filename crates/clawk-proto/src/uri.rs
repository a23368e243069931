//! `claw://` URIs (CKP §7, R8). Filled by the manifest's author.
