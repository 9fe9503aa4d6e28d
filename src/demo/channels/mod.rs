//! The system of the message gateway's channels, judged from the record of its sample upstream.

pub mod judge;
