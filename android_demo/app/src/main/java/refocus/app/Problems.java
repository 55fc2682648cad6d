package refocus.app;

import android.content.ActivityNotFoundException;
import android.content.Context;
import android.content.res.Resources;
import java.util.Map;
import refocus.recognizer.Reason;
import refocus.recognizer.RefocusException;

/** What went wrong, in the reader's language and without places of files; details are in English, for engineers. */
final class Problems {
    private Problems() {}

    /** One or two sentences, with what to do. */
    static String words(Context context, Throwable error) {
        if (error instanceof OutOfMemoryError) {
            return context.getString(R.string.problem_memory);
        }
        if (error instanceof ActivityNotFoundException) {
            return context.getString(R.string.problem_no_app);
        }
        if (error instanceof java.io.IOException) {
            return context.getString(R.string.problem_file);
        }
        return error instanceof RefocusException ? words(context, ((RefocusException) error).reason)
                : context.getString(R.string.problem_other);
    }

    private static String words(Context context, Reason reason) {
        switch (reason) {
            case PHOTO_GONE:
            case PHOTO_FORMAT:
            case PHOTO_DAMAGED:
            case PHOTO_SIZE:
            case PHOTO_MEMORY:
                return photos(context, reason, 1);
            case MODEL_MISSING:
                return context.getString(R.string.no_model);
            case MODEL_DAMAGED:
                return context.getString(R.string.problem_model_damaged);
            case MODEL_NEWER:
                return context.getString(R.string.problem_model_newer);
            case MODEL_UNFIT:
                return context.getString(R.string.problem_model_unfit);
            case MODEL_SELF_TEST:
                return context.getString(R.string.problem_self_test);
            case RUNTIME:
                return context.getString(R.string.problem_runtime);
            case PROFILE_BUSY:
                return context.getString(R.string.problem_profile_busy);
            case PROFILE_NAME:
                return context.getString(R.string.problem_profile_name);
            case PROFILE_TAKEN:
                return context.getString(R.string.problem_profile_taken);
            case PROFILE_UNREADABLE:
                return context.getString(R.string.problem_profile_unreadable);
            case STORAGE:
                return context.getString(R.string.problem_storage);
            default:
                return context.getString(R.string.problem_other);
        }
    }

    /** One summary of any number of photos that could not be used. */
    static String summary(Context context, Map<Reason, Integer> counts) {
        int all = 0;
        StringBuilder lines = new StringBuilder();
        for (Map.Entry<Reason, Integer> each : counts.entrySet()) {
            all += each.getValue();
            lines.append("\n• ").append(photos(context, each.getKey(), each.getValue()));
        }
        return context.getResources().getQuantityString(R.plurals.problem_photos, all, all) + "\n" + lines;
    }

    private static String photos(Context context, Reason reason, int count) {
        Resources resources = context.getResources();
        switch (reason) {
            case PHOTO_GONE:
                return resources.getQuantityString(R.plurals.problem_gone, count, count);
            case PHOTO_FORMAT:
                return resources.getQuantityString(R.plurals.problem_format, count, count);
            case PHOTO_SIZE:
                return resources.getQuantityString(R.plurals.problem_size, count, count);
            case PHOTO_MEMORY:
                return resources.getQuantityString(R.plurals.problem_photo_memory, count, count);
            default:
                return resources.getQuantityString(R.plurals.problem_damaged, count, count);
        }
    }

    /** For engineers: the message in English, without the places of somebody's photos. */
    static String details(Throwable error) {
        String message = String.valueOf(error.getMessage() == null ? error.getClass().getName() : error.getMessage());
        return message.replaceAll("(content|file)://\\S+", "…");
    }
}
