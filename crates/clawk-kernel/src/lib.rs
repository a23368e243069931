//! clawk-kernel
