package refocus.app.model;

import refocus.recognizer.Indexer;

/** When indexing in the background gives way: to heat, to an empty battery, and to a system that wants it to stop. */
public final class Conditions implements Indexer.Stop {
    /** PowerManager.THERMAL_STATUS_SEVERE, from API 29 on. */
    private static final int SEVERE = 3;
    private static final int LOW_BATTERY_PERCENT = 20;
    private final Sensors sensors;
    private volatile boolean asked;

    /** What the device says; the app asks Android, a test says what it likes. */
    public interface Sensors {
        /** 0 (none) to 6 (shutdown); 0 where the device does not say. */
        int thermalStatus();

        /** 0 to 100. */
        int batteryPercent();

        boolean charging();
    }

    public Conditions(Sensors sensors) {
        this.sensors = sensors;
    }

    /** The system wants the work to stop. */
    public void stop() {
        asked = true;
    }

    @Override
    public boolean now() {
        return asked || sensors.thermalStatus() >= SEVERE
                || (!sensors.charging() && sensors.batteryPercent() < LOW_BATTERY_PERCENT);
    }
}
