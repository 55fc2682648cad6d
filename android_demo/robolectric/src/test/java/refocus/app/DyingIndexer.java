package refocus.app;

import java.io.File;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.junit.Test;
import org.junit.runner.RunWith;
import org.robolectric.annotation.Config;
import org.robolectric.annotation.GraphicsMode;

/** Indexes until the fourth photo, says so, and waits to be killed. Started by {@link IndexJobTest} in a process of its own. */
@RunWith(AppRunner.class)
@Config(sdk = 33, shadows = Strips.class)
@GraphicsMode(GraphicsMode.Mode.NATIVE)
public class DyingIndexer {
    static final String MIDDLE = "in the middle of indexing: ";

    @Test
    public void index() throws Exception {
        Folder.serve(new File(System.getProperty("refocus.dying")));
        AtomicInteger read = new AtomicInteger();
        Folder.watch(name -> {
            if (read.incrementAndGet() == 4) {
                System.out.println("\n" + MIDDLE + Screen.app().getNoBackupFilesDir());
                LockSupport.park();
            }
        });
        Indexing.charging(true);
        new Indexing(Indexing.scheduled()).run();
    }
}
