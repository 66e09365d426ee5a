//! One stream's two directions.
