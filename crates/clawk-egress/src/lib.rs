//! clawk-egress
