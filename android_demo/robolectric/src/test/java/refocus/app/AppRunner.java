package refocus.app;

import org.junit.runners.model.FrameworkMethod;
import org.junit.runners.model.InitializationError;
import org.robolectric.RobolectricTestRunner;
import org.robolectric.internal.bytecode.InstrumentationConfiguration;

/** Robolectric, with ONNX Runtime outside of its sandboxes: its native library is loaded once, for all Androids. */
public final class AppRunner extends RobolectricTestRunner {
    public AppRunner(Class<?> test) throws InitializationError {
        super(test);
    }

    @Override
    protected InstrumentationConfiguration createClassLoaderConfig(FrameworkMethod method) {
        return new InstrumentationConfiguration.Builder(super.createClassLoaderConfig(method))
                .doNotAcquirePackage("ai.onnxruntime.").build();
    }
}
