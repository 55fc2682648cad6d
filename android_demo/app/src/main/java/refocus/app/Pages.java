package refocus.app;

import android.app.Activity;
import android.app.AlertDialog;
import android.graphics.Bitmap;
import android.net.Uri;
import android.view.View;
import android.view.ViewGroup;
import android.widget.ImageView;
import android.widget.LinearLayout;
import android.widget.TextView;

/** Small pieces that several screens are made of. */
final class Pages {
    private Pages() {}

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

    /** An image of a photo that is read in the background; {@code described} is what a screen reader says. */
    static ImageView photo(final Activity activity, ViewGroup to, final Uri uri, int dp, String described) {
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
                final Bitmap found = Photos.small(activity.getContentResolver(), uri, side);
                app.ui.post(new Runnable() {
                    @Override
                    public void run() {
                        if (!activity.isDestroyed()) {
                            view.setImageBitmap(found);
                        }
                    }
                });
            }
        });
        return view;
    }

    /** Says on the screen what went wrong; from any thread. */
    static void tell(final Activity activity, final Throwable error) {
        RefocusApp.of(activity).ui.post(new Runnable() {
            @Override
            public void run() {
                if (!activity.isDestroyed()) {
                    new AlertDialog.Builder(activity).setMessage(error.getMessage())
                            .setPositiveButton(R.string.ok, null).show();
                }
            }
        });
    }

    static int pixels(Activity activity, int dp) {
        return Math.round(dp * activity.getResources().getDisplayMetrics().density);
    }

    static ViewGroup page(Activity activity) {
        activity.setContentView(R.layout.page);
        return (ViewGroup) activity.<View>findViewById(R.id.page);
    }
}
