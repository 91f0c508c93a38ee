//! FPDUs made by hand.
