//! The system of the app stores, judged from the record of its sample upstream.

pub mod judge;
