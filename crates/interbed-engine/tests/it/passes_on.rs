//! What runners that wrap another runner leave to it.

/// Writes those of the methods of [`interbed_engine::Runner`] that are named, so that they call the same method of the
/// field `$inner`.
macro_rules! passes_on {
    (@forward $inner:ident) => {
        fn forward(
            &mut self,
            batch: &[interbed_model::BatchSequence<'_>],
            below: &mut dyn interbed_model::KvBelow,
            sink: &mut dyn FnMut(interbed_model::LogitRow, interbed_model::Logits<'_>),
        ) -> Result<(), interbed_engine::PassError> {
            self.$inner.forward(batch, below, sink)
        }
    };
    (@copy_blocks $inner:ident) => {
        fn copy_blocks(&mut self, copies: &[interbed_kv::BlockCopy]) {
            self.$inner.copy_blocks(copies);
        }
    };
    (@resize_blocks $inner:ident) => {
        fn resize_blocks(&mut self, came: &[u32], left: &[u32]) {
            self.$inner.resize_blocks(came, left);
        }
    };
    (@block_bytes $inner:ident) => {
        fn block_bytes(&mut self) -> Option<&mut dyn interbed_kv::BlockBytes> {
            self.$inner.block_bytes()
        }
    };
    (@cache_namespace $inner:ident) => {
        fn cache_namespace(&self, prompt_len: usize) -> u64 {
            self.$inner.cache_namespace(prompt_len)
        }
    };
    (@kv_memory $inner:ident) => {
        fn kv_memory(&mut self) -> Option<&mut dyn interbed_engine::KvMemory> {
            self.$inner.kv_memory()
        }
    };
    (@strips $inner:ident) => {
        fn strips(&mut self) -> Option<&mut dyn interbed_engine::StripMemory> {
            self.$inner.strips()
        }
    };
    (@shown_weights $inner:ident) => {
        fn shown_weights(&mut self) -> Option<&mut dyn interbed_engine::ShownWeights> {
            self.$inner.shown_weights()
        }
    };
    (@streams_kv $inner:ident) => {
        fn streams_kv(&self) -> bool {
            self.$inner.streams_kv()
        }
    };
    (@memory $inner:ident) => {
        fn memory(&mut self) -> interbed_engine::RunnerMemory {
            self.$inner.memory()
        }
    };
    ($inner:ident: $($method:ident),*) => {
        $($crate::passes_on::passes_on!(@$method $inner);)*
    };
}

pub(crate) use passes_on;
