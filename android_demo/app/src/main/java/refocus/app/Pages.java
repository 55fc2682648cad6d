package refocus.app;

import android.app.Activity;
import android.app.AlertDialog;
import android.content.ActivityNotFoundException;
import android.content.DialogInterface;
import android.content.Intent;
import android.graphics.Bitmap;
import android.graphics.BitmapFactory;
import android.net.Uri;
import android.view.View;
import android.view.ViewGroup;
import android.widget.Button;
import android.widget.ImageView;
import android.widget.LinearLayout;
import android.widget.TextView;
import java.io.File;
import java.util.Locale;
import java.util.Map;
import refocus.recognizer.Reason;
import refocus.recognizer.RefocusException;

/** Small pieces that several screens are made of. */
final class Pages {
    /** A small picture of something, made on a thread of its own. */
    interface Painter {
        /** The picture; null where there is none. */
        Bitmap paint(int side);
    }

    private Pages() {}

    /** A place for views, one below the other. */
    static ViewGroup column(Activity activity, ViewGroup to) {
        LinearLayout column = new LinearLayout(activity);
        column.setOrientation(LinearLayout.VERTICAL);
        to.addView(column);
        return column;
    }

    static TextView text(Activity activity, ViewGroup to, String content) {
        TextView view = new TextView(activity);
        view.setText(content);
        view.setTextIsSelectable(true);
        view.setPadding(0, pixels(activity, 6), 0, pixels(activity, 6));
        to.addView(view);
        return view;
    }

    static TextView heading(Activity activity, ViewGroup to, String content) {
        TextView view = text(activity, to, content);
        view.setTextAppearance(android.R.style.TextAppearance_Material_Title);
        if (android.os.Build.VERSION.SDK_INT >= 28) {
            view.setAccessibilityHeading(true);
        }
        return view;
    }

    static Button button(Activity activity, ViewGroup to, int title, View.OnClickListener then) {
        Button button = new Button(activity);
        button.setText(title);
        button.setOnClickListener(then);
        to.addView(button);
        return button;
    }

    /** The reader's language, as "de". */
    static String language(Activity activity) {
        Locale locale = activity.getResources().getConfiguration().getLocales().get(0);
        return locale.getLanguage();
    }

    /** What is said of an answer. */
    static String label(Activity activity, String label, boolean recognised) {
        return recognised ? label : activity.getString(R.string.unknown);
    }

    /**
     * A photo of a person's album: the small picture that is kept of it, or else the photo itself. Where there is neither,
     * the tile says so.
     */
    static ImageView photo(final Activity activity, ViewGroup to, final String person, final String photo, final String place,
            int dp, String described) {
        return picture(activity, to, dp, described, new Painter() {
            @Override
            public Bitmap paint(int side) {
                RefocusApp app = RefocusApp.of(activity);
                try {
                    File kept = app.profiles().picture(person, photo);
                    Bitmap found = side <= RefocusApp.PICTURE_SIDE * 2 ? BitmapFactory.decodeFile(kept.getPath()) : null;
                    found = found == null ? Photos.small(activity.getContentResolver(), Uri.parse(place), side) : found;
                    return found == null ? BitmapFactory.decodeFile(kept.getPath()) : found;
                } catch (RefocusException erased) {
                    return null;
                }
            }
        });
    }

    /** A picture that is made in the background; {@code described} is what a screen reader says. */
    static ImageView picture(final Activity activity, ViewGroup to, int dp, final String described, final Painter painter) {
        final ImageView view = new ImageView(activity);
        final int side = pixels(activity, dp);
        LinearLayout.LayoutParams place = new LinearLayout.LayoutParams(side, side);
        place.setMargins(0, 0, pixels(activity, 4), 0);
        view.setLayoutParams(place);
        view.setScaleType(ImageView.ScaleType.CENTER_CROP);
        view.setContentDescription(described);
        to.addView(view);
        final RefocusApp app = RefocusApp.of(activity);
        app.pictures.execute(new Runnable() {
            @Override
            public void run() {
                if (activity.isDestroyed()) {
                    return; // turned, or left: another page asks anew
                }
                Bitmap made = null;
                try {
                    made = painter.paint(side);
                } catch (RuntimeException | OutOfMemoryError error) { // a picture less
                    android.util.Log.w("refocus", "a picture cannot be shown", error);
                }
                final Bitmap found = made;
                app.ui.post(new Runnable() {
                    @Override
                    public void run() {
                        if (found != null) {
                            view.setImageBitmap(found);
                        } else {
                            view.setScaleType(ImageView.ScaleType.CENTER);
                            view.setImageResource(R.drawable.ic_missing);
                            view.setContentDescription(activity.getString(R.string.missing_described, described));
                        }
                    }
                });
            }
        });
        return view;
    }

    /** Says on the screen what went wrong, in the reader's language; from any thread. */
    static void tell(final Activity activity, final Throwable error) {
        android.util.Log.w("refocus", "told on the screen", error);
        RefocusApp.of(activity).ui.post(new Runnable() {
            @Override
            public void run() {
                if (gone(activity)) {
                    return;
                }
                new AlertDialog.Builder(activity).setMessage(Problems.words(activity, error))
                        .setPositiveButton(R.string.ok, null)
                        .setNeutralButton(R.string.details, new DialogInterface.OnClickListener() {
                            @Override
                            public void onClick(DialogInterface dialog, int which) {
                                new AlertDialog.Builder(activity).setMessage(Problems.details(error))
                                        .setPositiveButton(R.string.ok, null).show();
                            }
                        }).show();
            }
        });
    }

    /** Says once how many photos could not be used, and why. On the main thread. */
    static void tell(Activity activity, Map<Reason, Integer> failures) {
        if (!failures.isEmpty() && !gone(activity)) {
            new AlertDialog.Builder(activity).setMessage(Problems.summary(activity, failures))
                    .setPositiveButton(R.string.ok, null).show();
        }
    }

    /** Whether a page is left, and shows nothing any more. */
    static boolean gone(Activity activity) {
        return activity.isFinishing() || activity.isDestroyed();
    }

    /** Asks another app; where the device has none for it, the page says so. */
    static void ask(Activity activity, Intent question, int request) {
        try {
            activity.startActivityForResult(question, request);
        } catch (ActivityNotFoundException | SecurityException none) {
            tell(activity, new ActivityNotFoundException(none.getMessage()));
        }
    }

    static int pixels(Activity activity, int dp) {
        return Math.round(dp * activity.getResources().getDisplayMetrics().density);
    }

    static ViewGroup page(Activity activity) {
        activity.setContentView(R.layout.page);
        return (ViewGroup) activity.<View>findViewById(R.id.page);
    }
}
