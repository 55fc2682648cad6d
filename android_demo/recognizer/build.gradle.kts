plugins {
    `java-library`
}

tasks.withType<JavaCompile>().configureEach {
    options.release = 8
    options.encoding = "UTF-8"
}

dependencies {
    compileOnly(libs.onnxruntime.jvm) // the app brings Android's own
    testImplementation(libs.onnxruntime.jvm)
    testImplementation(libs.junit)
}
